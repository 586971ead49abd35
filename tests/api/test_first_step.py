"""The first step of a model that breaks into several graphs is a real one: its own Python runs once per step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import twin

_CALLS = [0, 0]


class Counted(torch.autograd.Function):
    """Scales by how often its forward and its backward have been called."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _CALLS[0] += 1
        ctx.calls = _CALLS[0]
        return x * ctx.calls

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _CALLS[1] += 1
        return gradient * ctx.calls * _CALLS[1]


class Stateful(nn.Module):
    """Scales an activation by something that the code between two graphs changes at every call."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(8, 8), nn.Linear(8, 8), kind
        self.count, self.log, self.mean, self.plain = 0, list[int](), np.zeros(8), torch.zeros(8)
        self.numbers: Iterator[float] | None = None
        self.generator = torch.Generator().manual_seed(3) if kind == "generator of its own" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if self.kind == "autograd function":
            h = Counted.apply(h)
        else:
            factor = _factor(self, h)
            torch._dynamo.graph_break()
            h = h * factor
        return self.last(h).square().mean()


@torch._dynamo.disable
def _factor(model: Stateful, h: torch.Tensor) -> Any:
    if model.kind == "counter":
        model.count += 1
        return float(model.count)
    if model.kind == "list":
        model.log.append(1)
        return float(len(model.log))
    if model.kind == "numpy statistics":
        model.mean = 0.9 * model.mean + h.detach().numpy().mean(0)
        return float(model.mean.sum())
    if model.kind == "iterator":
        model.numbers = model.numbers or iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        return next(model.numbers)
    if model.kind == "plain tensor":
        model.plain.add_(h.detach().mean(0))
        return model.plain.clone()
    if model.kind == "random":
        return random.random() + float(np.random.rand())
    return torch.rand(8, generator=model.generator)


def _losses(model: Stateful) -> list[Any]:
    _CALLS[:] = [0, 0]
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(7)
    found: list[Any] = []
    for _ in range(3):
        model.zero_grad()
        loss = model(torch.ones(4, 8))
        loss.backward()
        found += [loss.item(), model.first.weight.grad.sum().item()]
    return [*found, random.random(), float(np.random.rand()), torch.rand(()).item()]


KINDS = ["counter", "list", "numpy statistics", "iterator", "plain tensor", "random", "generator of its own"]


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")  # one per number
@pytest.mark.parametrize("kind", [*KINDS, "autograd function"])
def test_python_of_the_model_runs_once_per_step(kind: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, fitted = Stateful(kind), Stateful(kind)
    fitted.load_state_dict(plain.state_dict())
    lowtide.fit(fitted, budget="1GiB", work=200)
    assert _losses(fitted) == _losses(plain)


class Branches(nn.Module):
    """Takes a branch that needs much memory where the second argument says so, which Dynamo cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.small, self.large = nn.Linear(32, 32), nn.Linear(32, 4096)

    def forward(self, x: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.norm(self.first(x)), 0.3)
        if h.sum().item() != 0 and large[0].item() > 0:
            return self.large(h).sin().cos().square().mean()
        return self.small(h).square().mean()


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
@pytest.mark.parametrize("steps", [0, 2])
def test_a_refusal_puts_back_what_the_step_has_changed(steps: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(64, 32)
    lowtide.fit(model, budget="1MiB", work=200)
    for _ in range(steps):
        model(x, torch.zeros(1)).backward()
        model.zero_grad()
    before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(lowtide.InfeasibleBudget, match="have been put back") as refusal:
        model(x, torch.ones(1))
    assert "nothing has been changed" not in str(refusal.value)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(torch.equal(v, before[1][k]) for k, v in model.state_dict().items())


def test_the_smallest_budget_that_a_first_step_names_is_enough() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Branches()
    model, x = twin(plain), torch.randn(256, 32)
    lowtide.fit(model, budget=1, work=200)
    with pytest.raises(lowtide.InfeasibleBudget) as refusal:
        model(x, torch.zeros(1))
    assert refusal.value.smallest_B is not None
    flag = torch.zeros(1)  # which the first graph does not read, so that its refusal does not count it
    model.lowtide.set_budget(refusal.value.smallest_B + flag.nbytes)
    for m in (plain, model):
        torch.manual_seed(1)
        for _ in range(3):
            m(x, flag).backward()
    trained = [p for p in zip(plain.parameters(), model.parameters(), strict=True) if p[0].grad is not None]
    assert all(torch.equal(a.grad, b.grad) for a, b in trained)
    assert torch.equal(plain.norm.running_mean, model.norm.running_mean)
