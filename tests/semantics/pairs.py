"""The same scenario twice: with a plain model, and with a fitted one in the tightest budget that lowtide names."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import lowtide
from lowtide.ir.schedule import Run

Scenario = Callable[[nn.Module], Any]
WORK = 500  # of planning: a tight plan, not the best one


class Wide(nn.Module):
    """Something in the middle of layers whose activations outweigh their parameters; the loss is inside.

    Arguments:
        middle: from [rows, width] to [rows, width].
    """

    def __init__(self, middle: nn.Module | Callable[[torch.Tensor], torch.Tensor], width: int = 32) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, width), middle, nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(F.gelu(self.first(x)) * 1.5)
        return torch.sigmoid(F.gelu(self.last(self.middle(h)))).square().mean()


def batches(count: int = 3, rows: int = 256, width: int = 8) -> list[torch.Tensor]:
    """Inputs from a fixed seed."""
    g = torch.Generator().manual_seed(1)
    return [torch.randn(rows, width, generator=g) for _ in range(count)]


def steps(count: int = 3, loss_of: Callable[[nn.Module, Any], torch.Tensor] | None = None) -> Scenario:
    """A loop of so many steps of SGD; returns losses and gradients."""

    def scenario(module: nn.Module) -> list[Any]:
        optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        seen: list[Any] = []
        for x in batches(count):
            optimizer.zero_grad()
            loss = module(x) if loss_of is None else loss_of(module, x)
            loss.backward()
            seen += [loss.detach().clone(), gradients(module)]
            optimizer.step()
        return seen

    return scenario


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    """Copies of the gradients as they are."""
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def tighten(fitted: nn.Module, call: Scenario, spare: float = 0.0) -> int:
    """Gives a fitted model the smallest budget that lowtide names for its first call, and a share more."""
    fitted.lowtide.set_budget(1)
    torch.manual_seed(3)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        call(fitted)
    assert caught.value.smallest_B is not None
    budget_B = int(caught.value.smallest_B * (1 + spare))
    fitted.lowtide.set_budget(budget_B)
    return budget_B


def run(module: nn.Module, scenario: Scenario) -> list[Any]:
    """What a scenario returns and leaves behind: gradients, parameters, buffers, the generator."""
    torch.manual_seed(3)
    returned = scenario(module)
    state = [p.detach().clone() for p in module.state_dict(keep_vars=True).values()]
    return [returned, gradients(module), state, torch.get_rng_state()]


def same(
    make: Callable[[], nn.Module],
    scenario: Scenario,
    *,
    call: Scenario | None = None,
    spare: float = 0.0,
    recomputes: bool = True,
    departs: str | tuple[str, ...] = (),
    rehearsed: bool = False,
) -> nn.Module:
    """Holds that a scenario gives the same bits, that something was recomputed, and that nothing left its place.

    Arguments:
        call: what meets the budget first, if not the scenario.
        spare: of the smallest budget, how much more there is: what a loop holds besides one step.
        recomputes: whether some plan has to run something twice.
        departs: how the names of operators begin whose memory depends on data, so that some of it finds no planned
            place: said aloud, and counted.
        rehearsed: whether the scenario runs once with many free bytes before: which outputs have gradients is known
        then.

    Returns: the fitted model after the scenario.
    """
    plain, fitted = seeded(make), lowtide.fit(seeded(make), 1, work=WORK)
    expected = run(plain, scenario)
    if rehearsed:
        state = {k: v.clone() for k, v in fitted.state_dict().items()}
        fitted.lowtide.set_budget("1GiB")
        run(fitted, scenario)
        fitted.load_state_dict(state)
        fitted.zero_grad()
    tighten(fitted, call or scenario, spare)
    with warnings.catch_warnings():
        if departs:
            warnings.filterwarnings("ignore", r"\d+ allocations of a planned step", lowtide.BudgetWarning)
        found = run(fitted, scenario)
    assert unlike(expected, found) == []
    inside(fitted, recomputes, departs)
    return fitted


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A model in training, always the same: some cannot be copied."""
    torch.manual_seed(0)
    return make().train()


def inside(fitted: nn.Module, recomputes: bool = True, departs: str | tuple[str, ...] = ()) -> None:
    """Holds that everything was served where it was planned, within the budget; arguments as for `same`."""
    stats = lowtide.memory_stats(fitted)
    assert [d for d in lowtide.misplaced_allocations(fitted) if not departs or not d.name.startswith(departs)] == []
    assert stats.budget_kind == "enforced"
    assert stats.reserved_B <= stats.budget_B
    assert departs or stats.misplaced_allocations == 0
    assert stats.spills == stats.refusals_for_capacity == stats.refusals_for_contiguity == 0
    assert stats.planned_hits > 0
    if recomputes:
        assert any(recomputed(fitted)), "nothing was recomputed"


def recomputed(fitted: nn.Module) -> Iterator[int]:
    """Per plan, how many recipes run more often than in the program."""
    for plan in fitted.lowtide.plans:
        runs = sum(isinstance(step, Run) for step in plan.record.schedule.steps)
        yield max(0, runs - len(plan.record.graph.program))


def unlike(expected: Any, found: Any) -> list[str]:
    """Every leaf that differs, by its place; empty where all bits are equal."""
    left, right = leaves(expected), leaves(found)
    if len(left) != len(right):
        return [f"{len(left)} leaves, {len(right)} leaves"]
    return [f"{i}: {a!s:.60} {b!s:.60}" for i, (a, b) in enumerate(zip(left, right, strict=True)) if not _equal(a, b)]


def leaves(thing: Any) -> list[Any]:
    """Tensors and numbers of nested structures, dataclasses too."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type) and not isinstance(thing, dict):
        return leaves([getattr(thing, f.name) for f in dataclasses.fields(thing)])
    found = tree_leaves(thing, is_leaf=lambda x: x is None)
    return [y for x in found for y in (leaves(x) if dataclasses.is_dataclass(x) else [x])]


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and a == b
    if (
        not isinstance(b, torch.Tensor)
        or a.dtype != b.dtype
        or a.shape != b.shape
        or a.requires_grad != b.requires_grad
    ):
        return False
    if a.is_sparse:
        return b.is_sparse and torch.equal(a._indices(), b._indices()) and torch.equal(a._values(), b._values())
    return bool(((a == b) | ((a != a) & (b != b))).all())
