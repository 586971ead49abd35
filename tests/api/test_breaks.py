"""Where a model breaks into several graphs is said with the cause and the line, and other models' breaks are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide


class Prints(nn.Module):
    """Breaks at a print, and at a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.first(x))
        print(end="")  # noqa: T201
        h = self.last(h)
        if h.square().sum() >= 0:
            h = h * 2
        return h.square().mean()


class InLoop(nn.Module):
    """Breaks inside a loop, where torch gives up the whole function and captures what it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def layer(self, linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(linear(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.layers:
            x = self.layer(linear, x)
            print(end="")  # noqa: T201
        return x.square().mean()


@torch.library.custom_op("lowtide_test_breaks::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """Has a backward that torch cannot trace: a size in it depends on data."""
    return x * 2


def _counted_backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    count = (ctx.saved_tensors[0] > -1e9).nonzero().shape[0]
    return gradient * 2 * count / count


def _counted_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


counted.register_fake(torch.empty_like)
counted.register_autograd(_counted_backward, setup_context=_counted_context)


class Untraceable(nn.Module):
    """Two graphs, of which the second cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.first(x))
        torch._dynamo.graph_break()
        return self.last(counted(h)).square().mean()


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_explain_lists_breaks_with_cause_and_line() -> None:
    plan = lowtide.plan(Prints(), (torch.randn(64, 64),), budget="100% of plain", work=1_000)
    assert plan.record.graphs == 3
    first, second = plan.record.breaks
    here = Path(__file__).name
    assert here in first.source
    assert "print(" in first.text
    assert "print" in first.cause
    assert "if h.square()" in second.text
    assert "content of a tensor" in second.cause
    assert "graph breaks" in plan.explain(verbose=True)
    assert "3 graphs on one timeline" in plan.explain(verbose=True)


def test_breaks_without_a_graph_end_are_listed_too() -> None:
    plan = lowtide.plan(InLoop(), (torch.randn(64, 64),), budget="100% of plain", work=1_000)
    assert plan.record.graphs > 1
    (found,) = plan.record.breaks
    assert found.source == ""
    assert "print" in found.cause


def test_breaks_of_another_model_are_not_this_ones() -> None:
    whole = lowtide.fit(nn.Sequential(nn.Linear(64, 64), nn.GELU()), budget="100% of plain", work=1_000)
    torch.compile(Prints(), backend="eager")(torch.randn(8, 64))
    whole(torch.randn(64, 64)).sum().backward()
    assert not whole.lowtide.session.broken
    assert whole.lowtide.plan.record.breaks == ()
    torch.compile(InLoop(), backend="eager")(torch.randn(8, 64))
    whole(torch.randn(32, 64)).sum().backward()
    assert not whole.lowtide.session.broken


def test_a_graph_that_is_left_out_is_listed() -> None:
    model = lowtide.fit(Untraceable(), "1MiB", work=100)
    model(torch.randn(8, 64)).backward()
    assert model.lowtide.calls == 1
    (left_out,) = [b for b in model.lowtide.plan.record.breaks if "outside any plan" in b.cause]
    assert "nonzero" in left_out.cause
    assert left_out.text == "return self.last(counted(h)).square().mean()"
    assert "outside any plan" in " ".join(model.lowtide.plan.explain(verbose=True).split())
