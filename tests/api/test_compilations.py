"""What one call of `torch.compile` makes: training, evaluation and every shape under one budget, and figures for it."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet, WeakValueDictionary

import pytest
import torch
from torch import nn

import lowtide
from lowtide.session import compile_sessions, handle
from lowtide.session.compile_sessions import compiled_sessions


class Net(nn.Module):
    """Layers with the loss inside; with a break before the last one if asked for."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.layers[0](x).square().mean()


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled code, and no models of other tests, which a traceback may keep alive."""
    torch._dynamo.reset()
    monkeypatch.setattr(handle, "_KEPT", WeakSet())
    monkeypatch.setattr(compile_sessions, "_SHARED", WeakValueDictionary())
    monkeypatch.setattr(compile_sessions, "_ALL", WeakSet())
    yield
    torch._dynamo.reset()


def _step(model: nn.Module, rows: int = 256) -> None:
    model(torch.randn(rows, 64)).backward()
    model.zero_grad()


def test_training_evaluation_and_shapes_share_one_budget() -> None:
    model = Net()
    model.compile(backend="lowtide", options={"budget": "80% of plain"})
    with torch.no_grad():
        model(torch.randn(256, 64))
    _step(model)
    _step(model, 128)
    assert len(compiled_sessions()) == 1
    stats = lowtide.memory_stats()
    assert stats.budget_kind == "enforced"
    assert stats.forwards == 3
    assert stats.backwards == 2
    assert stats.misplaced_allocations == stats.spills == 0
    assert stats.reserved_B <= stats.budget_B


def test_models_with_equal_options_share_torchs_compiled_code_and_its_budget() -> None:
    one, two = Net(), Net()
    one.compile(backend="lowtide", options={"budget": "1MiB"})
    two.compile(backend="lowtide", options={"budget": "1MiB"})
    _step(one)
    _step(two)
    assert lowtide.memory_stats().forwards == 2


def test_other_options_make_another_budget() -> None:
    one, two = Net(), Net()
    one.compile(backend="lowtide", options={"budget": "1MiB"})
    two.compile(backend="lowtide", options={"budget": "2MiB"})
    _step(one)
    _step(two)
    with pytest.raises(lowtide.LowtideError, match="2 budgets"):
        lowtide.memory_stats()


def test_a_broken_model_has_no_figures() -> None:
    model = Net(breaks=True)
    model.compile(backend="lowtide", options={"budget": "1MiB"})
    with pytest.warns(lowtide.BudgetWarning, match="one by one"):
        _step(model)
    with pytest.raises(lowtide.LowtideError, match=r"lowtide\.fit"):
        lowtide.memory_stats()


def test_compiled_models_are_asked_about_without_a_name() -> None:
    with pytest.raises(lowtide.LowtideError, match=r"lowtide\.memory_stats\(\)"):
        lowtide.memory_stats(Net())
