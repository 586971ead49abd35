"""Train a loop of your own with Accelerate inside a budget, and see that nothing else changed.

Run: python examples/accelerate_loop.py     (needs accelerate)
"""

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lowtide

BUDGET = "85% of plain"
Result = tuple[list[float], dict[str, torch.Tensor]]  # losses, and the weights at the end


class Net(nn.Module):
    """Layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1, self.training)
        return x


def loader(count: int, seed: int) -> DataLoader:
    """Random batches of 256."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 64, generator=generator), torch.randint(0, 64, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=256)


def train(inside: bool, state: str, resume: bool = False) -> Result:
    """Accumulates gradients over two batches, clips them, evaluates after each epoch, and saves after the first."""
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, batches, held_out = accelerator.prepare(model, optimizer, loader(1024, 1), loader(256, 2))
    if inside:
        lowtide.fit(accelerator.unwrap_model(model), budget=BUDGET, optimizer=optimizer)
    if resume:
        accelerator.load_state(state)
    losses = []
    for epoch in range(1 if resume else 0, 2):
        model.train()
        for x, y in batches:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses += [F.cross_entropy(model(x), y).item() for x, y in held_out]
        if epoch == 0:
            accelerator.save_state(state)
    if inside:
        print(lowtide.memory_stats(model))
    return losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def check(name: str, found: Result, wanted: Result) -> None:
    """Compares every loss and every weight, bit by bit; of a resumed run, those since then."""
    assert found[0] == wanted[0][-len(found[0]) :], f"{name}: {found[0]} is not {wanted[0]}"
    assert all(torch.equal(found[1][key], wanted[1][key]) for key in wanted[1]), name
    print(f"{name}: {len(found[0])} losses and {len(found[1])} tensors equal to plain training")


with tempfile.TemporaryDirectory() as home:
    expected = train(False, f"{home}/plain")
    check("lowtide.fit", train(True, f"{home}/inside"), expected)
    check("lowtide.fit, resumed", train(True, f"{home}/plain", resume=True), expected)
