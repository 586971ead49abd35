"""Train a network on several ranks in DistributedDataParallel, each inside the same budget, by one plan.

Run: torchrun --nproc-per-node=2 examples/data_parallel.py     (or, on one rank: python examples/data_parallel.py)
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lowtide


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    """An ordinary loop: every rank has its own batches."""
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(torch.randn(512, 64)), torch.randint(10, (512,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if "RANK" in os.environ:  # torchrun says who this is
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)

plain = DistributedDataParallel(network())
plain_losses = train(plain, torch.optim.AdamW(plain.parameters()))

model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters())
model = lowtide.fit(model, budget="70% of plain", optimizer=optimizer)
losses = train(model, optimizer)

assert losses == plain_losses
assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), model.parameters(), strict=True))
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {model.lowtide.plan}")
dist.destroy_process_group()
