"""Code between captured graphs is the model's own, and runs once per step; what runs may depend on data."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import differences, train, twin


@torch._dynamo.disable
def _between(norm: nn.Module, h: torch.Tensor) -> torch.Tensor:
    return F.dropout(norm(h), 0.1) * (1.0 + random.random())


class Between(nn.Module):
    """Batch norm, dropout and Python's own random numbers, all outside the captured graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(_between(self.norm, F.gelu(self.first(x)))).square().mean()


class Choice(nn.Module):
    """What runs after the break depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64, bias=False), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if h.sum() > 0:
            h = F.dropout(self.last(h), 0.1)
        return h.square().mean()


class Layer(nn.Module):
    """Two graphs, which equal layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.first(x))
        torch._dynamo.graph_break()
        return x + F.dropout(self.last(h), 0.1)


class Raises(nn.Module):
    """Raises when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        h = self.linear(x)
        if fail:
            raise ValueError("on purpose")
        return h.square().mean()


def _batches() -> list[torch.Tensor]:
    return [torch.randn(256, 64, generator=torch.Generator().manual_seed(i)) for i in range(2)]


def test_nothing_is_left_behind() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Between()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=1_000)
    random.seed(3)
    expected = train(plain, lambda m, x: m(x), _batches())
    random.seed(3)
    assert differences(expected, train(fitted, lambda m, x: m(x), _batches())) == []


def test_another_path_is_planned_and_said() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Choice()
    fitted = lowtide.fit(twin(plain), budget="300% of plain", work=1_000)
    batches = [x := _batches()[0], -x]
    expected = train(plain, lambda m, x: m(x), batches)
    with pytest.warns(lowtide.BudgetWarning, match="depends on data"):
        assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []


def test_an_exception_in_the_forward_is_not_the_end() -> None:
    torch._dynamo.reset()
    fitted = lowtide.fit(Raises(), budget="100% of plain", work=1_000)
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            fitted(_batches()[0], fail=True)
        fitted(_batches()[0]).backward()
        fitted.zero_grad()
    assert fitted.lowtide.calls == 2


def test_equal_layers_share_a_graph_but_not_a_plan() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = nn.Sequential(Layer(), Layer(), Layer())
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=1_000)
    expected = train(plain, lambda m, x: m(x).square().mean(), _batches())
    assert differences(expected, train(fitted, lambda m, x: m(x).square().mean(), _batches())) == []
    (step,) = fitted.lowtide.session.active_plans.plans
    assert len(set(step)) == len(step)
    assert len({executor for executor, _ in step}) < len(step)


class Unequal(nn.Module):
    """Two results, of which a loss of the caller's own may take either."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.wide, self.narrow = nn.Linear(64, 64), nn.Linear(64, 512), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.gelu(self.body(x))
        return self.wide(h), self.narrow(h)


def test_plans_of_one_forward_leave_enough_free_for_any_of_its_losses() -> None:
    torch._dynamo.reset()
    fitted = lowtide.fit(Unequal(), budget="16MiB", work=1_000)
    for index in (0, 1, 0, 1):
        fitted(_batches()[0])[index].square().mean().backward()
    reserves_B = [plan.reserve_B for plan in fitted.lowtide.session.active_plans.plans.values()]
    assert len(reserves_B) == 2
    assert min(reserves_B) >= 256 * 512 * 4
