"""Operators over their dying input, end to end: the bits of plain PyTorch, fewer bytes, at the predicted addresses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device import shim
from lowtide.device.observer import observe
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Run
from lowtide.ops.base import IN_PLACE, KINDS
from tests.networks import Network, ResidualNet, differences, train, twin

OTHERS = tuple(kind for kind in KINDS if kind != IN_PLACE)


class Deep(nn.Module):
    """Layers of three activations: from their output, from their input, and one that needs both of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer, activation in zip(self.layers, (F.gelu, torch.sigmoid, F.silu) * 2, strict=True):
            x = activation(layer(x)) + 0.5 * x
        return F.mse_loss(x, y)


class Attending(nn.Module):
    """Attention by hand, whose scores die as they become weights, and a language model's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.mix = nn.Linear(16, 48)
        self.out = nn.Linear(16, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.embed(ids)).chunk(3, dim=-1)
        x = torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1) @ v
        return F.cross_entropy(self.out(torch.relu(x)).flatten(0, 1), ids.flatten())


def _batches(make: Callable[[torch.Generator], Any], count: int) -> list[Any]:
    dice = torch.Generator().manual_seed(1)
    return [make(dice) for _ in range(count)]


def _network(name: str, build: Callable[[], nn.Module], make: Callable[[torch.Generator], Any]) -> Network:
    def outputs(module: nn.Module, batch: Any) -> Any:
        return module(*batch)

    return Network(name, build, outputs, functools.partial(_batches, make))


def _rows(dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 8, 32, generator=dice), torch.randn(16, 8, 32, generator=dice)


def _images(dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 16, 16, generator=dice), torch.randint(0, 5, (2,), generator=dice)


NETWORKS = {
    "deep": _network("deep", Deep, _rows),
    "residual": _network("residual", lambda: ResidualNet(2), _images),
    "attending": _network("attending", Attending, lambda d: (torch.randint(0, 64, (4, 24), generator=d),)),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def overwritten(graph: Graph, steps: Any) -> list[int]:
    """Values that runs of a schedule overwrite."""
    return [t.value for s in steps if isinstance(s, Run) for t in graph.recipes[s.recipe].consumes]


def smallest(fitted: nn.Module, network: Network) -> int:
    """The smallest budget that lowtide itself names."""
    fitted.lowtide.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        network.loss(fitted, network.batches(1)[0])
    assert caught.value.smallest_B is not None
    return caught.value.smallest_B


@pytest.mark.parametrize("name", NETWORKS)
def test_bits_and_bytes(name: str) -> None:
    network = NETWORKS[name]
    plain = network.build()
    expected = train(twin(plain), network.loss, network.batches(2))
    full_B, lowest_B = {}, {}
    for left_out in ((*OTHERS, IN_PLACE), OTHERS):
        torch._dynamo.reset()
        fitted = lowtide.fit(twin(plain), budget="100% of plain", work=5_000, without=left_out)
        start = {k: v.clone() for k, v in fitted.state_dict().items()}
        assert differences(expected, train(fitted, network.loss, network.batches(2))) == []
        full_B[left_out] = fitted.lowtide.plan.record.peak_B
        high_B = fitted.lowtide.plan.record.keep_all_peak_B
        lowest_B[left_out] = low_B = smallest(fitted, network)
        for alpha in (0.6, 0.25):
            fitted.load_state_dict(start)
            fitted.lowtide.set_budget(int(low_B + alpha * (high_B - low_B)))
            assert differences(expected, train(fitted, network.loss, network.batches(2))) == []
            record = fitted.lowtide.plan.record
            assert bool(overwritten(record.graph, record.schedule.steps)) is (left_out is OTHERS)
            predicted_B = record.peak_B - record.graph.persistent_B - record.outside_B
            assert _observed_B(network, fitted) <= predicted_B + 64
        if shim.available():
            assert lowtide.memory_stats(fitted).misplaced_allocations == 0
    (full_without_B, full_with_B), (low_without_B, low_with_B) = full_B.values(), lowest_B.values()
    assert full_with_B <= full_without_B
    assert low_with_B <= 1.02 * low_without_B  # as far down as a search gets
    saved_B = max(full_without_B - full_with_B, low_without_B - low_with_B)
    assert saved_B > 0 or name == "residual"  # where products' gradients are fuller than what runs in place


def _observed_B(network: Network, fitted: nn.Module) -> int:
    batch = network.batches(1)[0]
    with observe() as seen:
        network.loss(fitted, batch).backward()  # type: ignore[no-untyped-call]
    fitted.zero_grad()
    return seen.peak_B


@pytest.mark.parametrize("name", NETWORKS)
def test_a_second_backward_finds_what_the_first_one_read(name: str) -> None:
    network = NETWORKS[name]
    plain = network.build()
    fitted = lowtide.fit(twin(plain), budget="200% of plain", work=5_000, without=OTHERS)
    for module in (plain, fitted):
        loss = network.loss(module, network.batches(1)[0])
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        loss.backward()  # type: ignore[no-untyped-call]
    record = fitted.lowtide.plan.record
    assert overwritten(record.graph, record.schedule.steps)
    for p, q in zip(plain.parameters(), fitted.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


class Folded(nn.Module):
    """A result that is laid out within a larger storage (`F.fold`), and what could overwrite it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(self.first(x), 3)
        whole = F.fold(patches, (x.shape[2], x.shape[3]), 3)
        return self.second(torch.sigmoid(whole) * 0.1).relu().square().mean()


@pytest.mark.skipif(not shim.available(), reason="no arena here")
def test_a_result_in_a_larger_storage_misplaces_nothing() -> None:
    torch.manual_seed(0)
    model, x = Folded(), torch.randn(4, 4, 13, 13)
    plain = twin(model)
    plain(x).backward()
    lowtide.fit(model, budget="100% of plain", work=50)
    for _ in range(2):
        model.zero_grad()
        model(x).backward()
    assert not lowtide.misplaced_allocations(model)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)
