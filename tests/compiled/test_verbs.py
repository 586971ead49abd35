"""Every verb that takes a compiler, on one network: what it plans is what `torch.compile` computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from tests.networks import NETWORKS

NETWORK = NETWORKS["mixed"]


def steps(model: nn.Module, step: Any = None) -> list[torch.Tensor]:
    """Three steps of SGD; what they leave behind."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for seed, batch in enumerate(NETWORK.batches(3)):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss = NETWORK.loss(model if step is None else step, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [torch.stack(losses), *state(model)]


def state(model: nn.Module) -> list[torch.Tensor]:
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def same(expected: list[torch.Tensor], found: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    torch._dynamo.reset()
    model = NETWORK.build()
    return steps(model, torch.compile(model))


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()


def test_the_backend_of_torch_compile(expected: list[torch.Tensor]) -> None:
    model = NETWORK.build()
    options = {"budget": "100% of plain", "compiler": "inductor", "work": 5_000}
    assert same(expected, steps(model, torch.compile(model, backend="lowtide", options=options)))


def test_a_plan_and_what_follows_from_it(expected: list[torch.Tensor]) -> None:
    model = NETWORK.build()
    plan = lowtide.plan(model, args=NETWORK.batches(1)[0], budget="80% of plain", compiler="inductor", work=5_000)
    lowtide.fit(model, plan=plan, compiler="inductor")
    assert same(expected, steps(model))
    times = model.lowtide.compile_times
    assert times.graphs == 1
    assert times.inductor_s > 0
    assert times.reading_s > 0
    assert "the same bits as torch.compile(model)" in " ".join(plan.explain(verbose=True).split())


def test_a_frontier_begins_where_all_is_kept() -> None:
    found = lowtide.frontier(
        NETWORK.build(), NETWORK.batches(1)[0], compiler="inductor", points=3, baselines=False, work=2_000
    )
    assert len(found.record.points) >= 2


def test_a_whole_step_updates_what_the_kernels_have_computed(expected: list[torch.Tensor]) -> None:
    model = NETWORK.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = lowtide.TrainStep(model, None, optimizer, "100% of plain", targets=0, compiler="inductor", work=5_000)
    losses = []
    for seed, batch in enumerate(NETWORK.batches(3)):
        torch.manual_seed(seed)
        losses.append(step(*batch).detach().clone())
    assert same(expected, [torch.stack(losses), *state(model)])


class Broken(nn.Module):
    """Two graphs, with dropout and statistics in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(torch.tanh(self.norm(self.first(x))), 0.2)
        torch._dynamo.graph_break()
        return self.second(h).square().mean()


@pytest.mark.breadth
def test_several_graphs_and_shapes() -> None:
    def trained(model: nn.Module, call: Any) -> list[torch.Tensor]:
        losses = []
        for seed, rows in enumerate((32, 32, 24, 32)):
            torch.manual_seed(seed)
            loss = call(torch.randn(rows, 8))
            loss.backward()
            losses.append(loss.detach().clone())
        return [
            torch.stack(losses),
            *(p.grad.clone() for p in model.parameters()),
            *(b.clone() for b in model.buffers()),
        ]

    torch.manual_seed(0)
    model = Broken()
    expected = trained(model, torch.compile(model, dynamic=False))
    torch._dynamo.reset()
    torch.manual_seed(0)
    fitted = lowtide.fit(Broken(), budget="100% of plain", compiler="inductor", work=5_000)
    assert same(expected, trained(fitted, fitted))
    assert fitted.lowtide.plan.record.graphs == 2
    assert len(fitted.lowtide.plans) == 2
