"""A fitted model inside `torch.utils.checkpoint`: its forward runs again in the backward, and updates buffers again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import lowtide
from lowtide.device import shim


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Normed(nn.Module):
    """Statistics in the middle or at the end, dropout, and a break if asked for."""

    def __init__(self, *, at_end: bool = False, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.at_end, self.breaks = at_end, breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if not self.at_end:
            x = torch.relu(self.norm(x))
        if self.breaks:
            torch._dynamo.graph_break()
        x = self.last(nn.functional.dropout(x, 0.1))
        return self.norm(x) if self.at_end else x


class Counted(nn.Module):
    """Updates a buffer before what is saved for the backward, or behind it."""

    def __init__(self, *, behind: bool) -> None:
        super().__init__()
        self.layer, self.behind = nn.Linear(8, 8), behind
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.behind:
            self.seen.add_(x.detach().mean(0))
        y = self.layer(x).sin()
        if self.behind:
            self.seen.add_(y.detach().mean(0))
        return y


def trained(model: nn.Module, steps: int = 4) -> list[torch.Tensor]:
    """Gradients, buffers and the generator's state after some steps; parameters do not change."""
    torch.manual_seed(3)
    for _ in range(steps):
        x = torch.randn(4, 8, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).square().sum().backward()
    return [*(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers()), torch.get_rng_state()]


@pytest.mark.parametrize("early", [True, False], ids=["ended early", "to the end"])
@pytest.mark.parametrize(
    "model",
    [
        lambda: Normed(),
        lambda: Normed(at_end=True),
        lambda: Normed(breaks=True),
        lambda: Normed(at_end=True, breaks=True),
        lambda: Counted(behind=False),
    ],
    ids=["in the middle", "at the end", "two graphs", "two graphs, at the end", "a buffer of one's own"],
)
def test_buffers_move_as_often_as_in_plain_pytorch(model: object, early: bool) -> None:
    torch.manual_seed(0)
    plain = model()  # type: ignore[operator]
    fitted = lowtide.fit(copy.deepcopy(plain), "4MiB", work=100)
    with set_checkpoint_early_stop(early):
        expected, found = trained(plain), trained(fitted)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    module = shim.loaded()
    assert module is None or not module.levels(), "nothing of a step outlives it"


def test_a_forward_that_is_ended_early_stays_compiled() -> None:
    model = lowtide.fit(Normed(), "4MiB", work=100)
    trained(model, 1)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    trained(model, 3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_a_buffer_that_moves_behind_all_that_is_saved_is_refused() -> None:
    model = lowtide.fit(Counted(behind=True), "4MiB", work=100)
    with pytest.raises(lowtide.errors.BackwardError, match=r"set_checkpoint_early_stop\(False\)"):
        trained(model)
    torch.manual_seed(0)
    plain = Counted(behind=True)
    fitted = lowtide.fit(copy.deepcopy(plain), "4MiB", work=100)
    with set_checkpoint_early_stop(False):
        assert all(torch.equal(a, b) for a, b in zip(trained(plain), trained(fitted), strict=True))


def test_what_follows_the_model_inside_the_checkpoint_ends_it() -> None:
    torch.manual_seed(0)
    plain = Counted(behind=True)
    fitted = lowtide.fit(copy.deepcopy(plain), "4MiB", work=100)
    found = []
    for model in (plain, fitted):
        torch.manual_seed(3)
        for _ in range(3):
            x = torch.randn(4, 8, requires_grad=True)
            checkpoint(lambda x, model=model: model(x).sin(), x, use_reentrant=False).sum().backward()
        found.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
