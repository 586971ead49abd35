"""Windows of the arena open and close with the steps, even if one raises, interrupts, evaluates or frees in between."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no compiler")


class Layers(nn.Module):
    """Linear layers with dropout and batch norm; the loss is the caller's. Raises in mid-segment on a bad index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 128)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(128), nn.Linear(128, 10)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.table(index)
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1, self.training)
        return self.head(self.norm(x))


INDEX, TARGET = torch.arange(256) % 50, torch.arange(256) % 10
BAD = torch.full((256,), 1000)


def _new(budget: str, **options: object) -> tuple[Layers, torch.optim.Optimizer]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    return lowtide.fit(model, budget, optimizer=optimizer, work=1_000, **options), optimizer  # type: ignore[arg-type]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = 256) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(INDEX[:batch]), TARGET[:batch]).backward()
    optimizer.step()


def _windows(model: Layers) -> int:
    return model.lowtide.session.budget_scope.hard_budget.arena.slab.engagements  # type: ignore[union-attr, no-any-return]


def test_evaluating_under_inference_mode_while_gradients_are_alive() -> None:
    model, optimizer = _new("120% of plain")
    _step(model, optimizer)
    model.eval()
    with torch.inference_mode():
        assert torch.isfinite(model(INDEX)).all()
    model.train()
    _step(model, optimizer)
    assert lowtide.memory_stats(model).misplaced_allocations == 0


def test_a_larger_shape_makes_a_larger_arena_for_all() -> None:
    model, optimizer = _new("100% of plain")
    budgets = []
    for batch in (128, 64, 256, 128, 64, 256):
        _step(model, optimizer, batch)
        stats = lowtide.memory_stats(model)
        assert stats.reserved_B <= stats.budget_B
        budgets.append(stats.budget_B)
    assert budgets[0] == budgets[1] < budgets[2] == budgets[-1]
    assert lowtide.memory_stats(model).misplaced_allocations == 0


def test_what_is_learnt_does_not_raise_the_budget() -> None:
    model, optimizer = _new("95% of plain")
    _step(model, optimizer)
    budget_B = lowtide.memory_stats(model).budget_B
    optimizer.zero_grad()
    loss = F.cross_entropy(model(INDEX), TARGET)
    waste = [torch.empty(40_000) for _ in range(8)]
    loss.backward()  # finds its places free, whatever the caller took
    optimizer.step()
    del waste, loss
    with pytest.warns(lowtide.BudgetWarning, match="found no space"):
        _step(model, optimizer)
    assert lowtide.memory_stats(model).budget_B == budget_B


@pytest.mark.parametrize("scope", ["none", "step", "process"])
def test_a_model_that_nobody_names_is_gone_with_its_arena(scope: str) -> None:
    model, optimizer = _new("120% of plain", scope=scope)
    _step(model, optimizer)
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None
    torch.empty(5_000_000)


def test_an_error_on_one_thread_leaves_the_windows_of_others_alone() -> None:
    model, optimizer = _new("300% of plain")
    _step(model, optimizer)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(INDEX), TARGET)
    seen: list[type[BaseException]] = []

    def fail() -> None:
        try:
            model(BAD)
        except IndexError as error:
            seen.append(type(error))

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert seen == [IndexError]
    assert _windows(model) == 1
    assert model.lowtide.session.budget_scope.hard_budget.is_awaited  # by this thread's backward
    loss.backward()
    del loss
    gc.collect()
    assert _windows(model) == 0


def test_an_interrupted_optimizer_step_ends_with_the_next_segment() -> None:
    model, optimizer = _new("100% of plain")
    _step(model, optimizer)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _step(model, optimizer)
    hook.remove()
    _step(model, optimizer)
    assert lowtide.memory_stats(model).misplaced_allocations == 0
    assert _windows(model) == 0


def test_an_error_in_a_segment_does_not_open_the_process() -> None:
    model, optimizer = _new("150% of plain", scope="process")
    _step(model, optimizer)
    with pytest.raises(IndexError):
        model(BAD)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(lowtide.memory_stats(model).budget_B)
    _step(model, optimizer)
    lowtide.unfit(model)
    torch.empty(5_000_000)
    assert not hasattr(model, "lowtide")
    assert model(INDEX).shape == (256, 10)


def test_what_is_no_optimizer_is_refused_at_once() -> None:
    with pytest.raises(lowtide.OptimizerError, match=r"no torch\.optim\.Optimizer"):
        lowtide.fit(Layers(), "1GiB", optimizer="adam")  # type: ignore[arg-type]
    with pytest.warns(lowtide.BudgetWarning, match="steps no parameter of this model"):
        lowtide.fit(Layers(), "1GiB", optimizer=torch.optim.SGD(Layers().parameters()))


def test_a_step_whose_inputs_do_not_fit_names_a_budget_in_which_they_do() -> None:
    model, optimizer = _new("120% of plain")
    _step(model, optimizer)
    hard_budget = model.lowtide.session.budget_scope.hard_budget
    assert hard_budget is not None
    inputs_B = hard_budget.arena.capacity_B // 2
    hard_budget.arena.plan_top_B = 0
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        hard_budget.keep_free(inputs_B)
    assert caught.value.smallest_B is not None
    assert f"budget={caught.value.smallest_B}" in str(caught.value)
    model, optimizer = _new(str(caught.value.smallest_B))
    _step(model, optimizer)
    hard_budget = model.lowtide.session.budget_scope.hard_budget
    assert hard_budget is not None
    hard_budget.keep_free(inputs_B)
