"""A fitted model under DistributedDataParallel, and models whose parameters lie on several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.device import shim
from tests.ranks import on_two_ranks

pytestmark = [
    pytest.mark.skipif(not shim.available(), reason="no arena here"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here"),
]
WIDTH, ROWS = 48, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(F.gelu(self.widen(self.norm(x)))))


def _train(budget: str | None, inner: bool = False) -> tuple[list[float], list[Tensor]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(net.parameters())
    if budget is not None and inner:
        lowtide.fit(net, budget, optimizer=optimizer, work=300)
    model: nn.Module = DistributedDataParallel(net, bucket_cap_mb=0.05)
    if budget is not None and not inner:
        model = lowtide.fit(model, budget, optimizer=optimizer, work=300)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(ROWS, WIDTH)), torch.randint(10, (ROWS,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in net.parameters()]


def _refusals() -> dict[str, str]:
    """What each public verb says of parameters that lie on several processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def split() -> nn.Module:
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(net, init_device_mesh("cpu", (2,)), styles)

    def sharded() -> nn.Module:
        return fully_shard(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))

    def later() -> object:
        net = lowtide.fit(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), "1GiB")
        fully_shard(net[2])
        return net(x)

    def step(model: nn.Module) -> object:
        return lowtide.TrainStep(model, None, torch.optim.SGD(model.parameters()), "1GiB")

    x = torch.ones(4, 8)
    verbs: dict[str, Callable[[], Any]] = {
        "fit": lambda: lowtide.fit(split(), "1GiB"),
        "fit sharded": lambda: lowtide.fit(sharded(), "1GiB"),
        "fit, and sharded afterwards": later,
        "plan": lambda: lowtide.plan(split(), (x,), budget="1GiB"),
        "frontier": lambda: lowtide.frontier(sharded(), (x,), points=2),
        "TrainStep": lambda: step(sharded()),
        "TrainStep, tensor parallel": lambda: step(split()),
        "fits": lambda: lowtide.fits(split(), (x,), device="h100"),
        "max_batch": lambda: lowtide.max_batch(lambda n: torch.ones(n, 8), split(), "1GiB"),
    }
    found = {}
    for name, call in verbs.items():
        try:
            call()
            found[name] = "not refused"
        except lowtide.ArgumentError as error:
            found[name] = str(error)
    return found


def _all() -> dict[str, Any]:
    plain = _train(None)
    same = {}
    for inner in (True, False):
        losses, parameters = _train("70% of plain", inner)
        same[inner] = losses == plain[0] and all(map(torch.equal, parameters, plain[1]))
    return {"same": same, "refused": _refusals()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(_all, _folder(tmp_path_factory))


def _folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("ranks")


def test_several_buckets_train_as_without_lowtide(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert all(answer["same"].values()), answer["same"]


def test_parameters_on_several_processes_are_refused_in_words(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        for name, text in answer["refused"].items():
            assert "DTensor" in text, (name, text)
            assert "lowtide.eager" in text, (name, text)
