"""A branch on a tensor that the caller gave, or that the model made of sizes alone, is taken as without lowtide."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import differences, train, twin


class Masked(nn.Module):
    """Looks whether its mask masks anything, and whether positions count up, and computes something else if so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = F.gelu(self.first(x))
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        if (torch.diff(positions, dim=-1) == 1).all():
            h = h * 1.1
        if mask is not None and not mask.bool().all():
            h = h.masked_fill(~mask.bool().unsqueeze(-1), 0.0).tanh()
        return self.last(h).square().mean()


class OnData(nn.Module):
    """Branches on what it has computed: nobody can know."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return (h * 2 if h.sum() < 1e9 else h).square().mean()


class InPieces(nn.Module):
    """Breaks in a loop, so that what it calls is captured by itself: its `kwargs` are not those of the model's call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)

    def layer(self, x: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return h * 2 if kwargs["mask"].all() else h.tanh()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for turn in range(2):
            x = self.layer(x, mask=mask if turn else ~mask)
            print(end="")  # noqa: T201
        return x.square().mean()


def _batches() -> list[dict[str, torch.Tensor]]:
    """Masks that mask nothing and something, and none, in turn, at three lengths."""
    g = torch.Generator().manual_seed(1)
    found = []
    for length in (16, 24, 16, 40):
        x = torch.randn(8, length, 32, generator=g)
        ones, some = torch.ones(8, length, dtype=torch.int64), torch.ones(8, length, dtype=torch.int64)
        some[0, length // 2 :] = 0
        found += [{"x": x, "mask": ones}, {"x": x, "mask": some}, {"x": x}]
    return found


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, False])
def test_every_branch_is_the_one_that_eager_takes(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    plain = Masked()
    fitted = lowtide.fit(twin(plain), budget="4MiB", work=1_000, dynamic=dynamic)
    expected = train(plain, lambda m, b: m(**b), _batches())
    assert differences(expected, train(fitted, lambda m, b: m(**b), _batches())) == []
    assert not fitted.lowtide.session.broken
    assert lowtide.misplaced_allocations(fitted) == ()


def test_a_fact_that_no_longer_holds_is_noticed_in_place() -> None:
    torch.manual_seed(0)
    plain = Masked()
    fitted = lowtide.fit(twin(plain), budget="4MiB", work=1_000)
    x, mask = torch.randn(8, 16, 32), torch.ones(8, 16)
    for _ in range(2):
        assert torch.equal(plain(x, mask=mask), fitted(x, mask=mask))
        mask[:, 3:] = 0
    mask.fill_(1)
    calls = fitted.lowtide.calls
    plans = len(fitted.lowtide.plans)
    assert torch.equal(plain(x, mask=mask), fitted(x, mask=mask))
    assert fitted.lowtide.calls == calls + 1
    assert len(fitted.lowtide.plans) == plans, "what was captured before serves again"


def test_what_the_model_computed_is_not_known() -> None:
    torch.manual_seed(0)
    plain = OnData()
    fitted = lowtide.fit(twin(plain), budget="4MiB", work=1_000)
    x = torch.randn(8, 32)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(2):  # planned from what the first one showed
            assert torch.equal(plain(x), fitted(x))
    assert not [w for w in given if issubclass(w.category, lowtide.BudgetWarning)]
    assert len(fitted.lowtide.session.breaks) == 1
    other = torch.full((8, 32), 1e12) @ plain.first.weight.detach()  # the other branch
    assert plain.first(other).sum() >= 1e9
    with pytest.warns(lowtide.BudgetWarning, match="depends on data"):
        assert torch.equal(plain(other), fitted(other))
    assert len(fitted.lowtide.session.breaks) == 1


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
def test_arguments_of_the_call_are_not_taken_for_those_of_an_inner_function() -> None:
    torch.manual_seed(0)
    plain = InPieces()
    fitted = lowtide.fit(twin(plain), budget="4MiB", work=1_000)
    x, mask = torch.randn(8, 32), torch.ones(8, dtype=torch.bool)
    assert torch.equal(plain(x, mask=mask), fitted(x, mask=mask))


def test_outside_a_capture_of_ours_all_is_as_before() -> None:
    fitted = lowtide.fit(Masked(), budget="4MiB", work=1_000)
    fitted(torch.randn(8, 16, 32), mask=torch.ones(8, 16))
    graphs = []

    def count(gm: torch.fx.GraphModule, _: object) -> object:
        graphs.append(gm)
        return gm.forward

    torch.compile(Masked(), backend=count)(torch.randn(8, 16, 32), mask=torch.ones(8, 16))
    assert len(graphs) > 1
