"""`lowtide.memory_stats`, `lowtide.snapshot`, `lowtide.misplaced_allocations`: what the budget holds, and who holds it.

Units: `_B` bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from lowtide.arguments import check_file
from lowtide.device import cuda
from lowtide.device.arena import ArenaStats, MisplacedAllocation
from lowtide.device.transfer_stats import TransferStats
from lowtide.errors import LowtideError
from lowtide.ir.budget import BudgetBreakdown
from lowtide.report.memory_viz import Holding, write_snapshot
from lowtide.runtime.hard_budget import HardBudget
from lowtide.session.compile_sessions import compiled_sessions
from lowtide.session.handle import Fitted, fitted_models
from lowtide.session.session import Session

_MOVED = ("host_budget_B", "host_in_use_B", "host_peak_B", "stalls", "stalled_s")
_COUNTED = (
    "largest_hole_B", "planned_hits", "planned_misses", "misplaced_allocations", "small", "workers", "spills",
    "spilled_B",
)  # fmt: skip


class MemoryStats(msgspec.Struct, frozen=True):
    """Bytes that a fitted model's budget holds, and counts of how its plans did.

    Arguments:
        budget_B: bytes that were asked for; 0 before the first step.
        budget_kind: "enforced": an arena of that size; "capped": a limit on what torch's allocator reserves on a GPU,
            which holds more than plans count (`Plan.covers` says what); "accounted": counted, not enforced.
        arena_B: the arena's part of the budget; the rest is what cannot be moved there.
        in_use_B: bytes in use now, those outside the arena included.
        peak_B: most bytes in use at once.
        reserved_B: bytes ever reserved, holes included.
        predicted_B: the most that the active plans said would be reserved.
        largest_hole_B: the largest piece that could still be served.
        planned_hits: allocations of lowtide's own code that were served at their planned address.
        planned_misses: planned addresses that no allocation took.
        misplaced_allocations: allocations of lowtide's own code that were served elsewhere;
            `lowtide.misplaced_allocations` names them.
        small: requests below 512 B, which are not planned.
        workers: allocations by worker threads of parallel operators.
        overflows: allocations that did not fit into the zone meant for them.
        spills, spilled_B: requests of code outside lowtide's graphs that did not fit and were served past the arena,
            and their bytes in sum; `BudgetWarning` was given. Never with the scope "process".
        refusals_for_capacity, refusals_for_contiguity: requests that did not fit, each an out-of-memory error: too few
            free bytes; enough, but in pieces.
        host_budget_B, host_in_use_B, host_peak_B: the limit of offloaded values, their bytes there now and at most;
            values that live there are not among them. `lowtide.transfers` says more.
        stalls, stalled_s: how often, and how long, compute waited for a copy that was late.
        breakdown: where the bytes of the budget go under the active plan that reserves most; None before any.
        forwards, backwards: how often a graph really ran in lowtide's code.
    """

    budget_B: int
    budget_kind: Literal["enforced", "capped", "accounted"]
    arena_B: int = 0
    in_use_B: int = 0
    peak_B: int = 0
    reserved_B: int = 0
    predicted_B: int = 0
    largest_hole_B: int = 0
    planned_hits: int = 0
    planned_misses: int = 0
    misplaced_allocations: int = 0
    small: int = 0
    workers: int = 0
    overflows: int = 0
    spills: int = 0
    spilled_B: int = 0
    refusals_for_capacity: int = 0
    refusals_for_contiguity: int = 0
    host_budget_B: int = 0
    host_in_use_B: int = 0
    host_peak_B: int = 0
    stalls: int = 0
    stalled_s: float = 0.0
    breakdown: BudgetBreakdown | None = None
    forwards: int = 0
    backwards: int = 0


def memory_stats(model: torch.nn.Module | None = None) -> MemoryStats:
    """Says what a model's budget holds now, and how its plans did so far.

    Arguments:
        model: a fitted model; None for the only one, or else for the only one that was given to `torch.compile`.

    Returns: figures. Where a budget is accounted, bytes in use are not known and stay 0; where it is capped, they are
        those of the whole process on the current GPU, as torch's allocator counts them.

    Raises:
        LowtideError: if the model was not fitted, or none was named and there are none or several.
    """
    session = session_of(model)
    plans = list(session.active_plans.plans.values())
    engines, hard_budget = session.budget_scope.engines, session.budget_scope.hard_budget
    moved = TransferStats() if engines is None else engines.stats()
    largest = max((*plans, *session.active_plans.now), key=lambda p: p.reserved_B, default=None)
    common: dict[str, Any] = {
        "predicted_B": 0 if largest is None else largest.reserved_B,
        "breakdown": None if largest is None else largest.breakdown,
        "forwards": session.calls,
        "backwards": session.executors.backwards,
        **{name: getattr(moved, name) for name in _MOVED},
    }
    if hard_budget is None:
        budget_B = max((p.budget_B for p in plans), default=0)
        if largest is None or largest.budget_kind == "accounted":
            return MemoryStats(budget_B, "accounted", **common)
        return MemoryStats(budget_B, largest.budget_kind, **cuda.held_B(), **common)  # type: ignore[arg-type]
    seen = hard_budget.arena.stats()
    outside_B = hard_budget.outside_B
    return MemoryStats(
        budget_B=hard_budget.budget_B,
        budget_kind="enforced",
        arena_B=hard_budget.arena.capacity_B,
        in_use_B=outside_B + seen.in_use_B,
        peak_B=outside_B + seen.peak_B,
        reserved_B=_reserved_B(hard_budget, seen),
        overflows=seen.overflow,
        refusals_for_capacity=seen.failures_for_capacity,
        refusals_for_contiguity=seen.failures_for_contiguity,
        **{name: getattr(seen, name) for name in _COUNTED},
        **common,
    )


def snapshot(model: torch.nn.Module | None = None, path: str | Path | None = None) -> tuple[Holding, ...]:
    """Lists who holds which bytes at which address of a fitted model's arena, by address.

    Arguments:
        model: a fitted model; None for the only one, or else for the only one that was given to `torch.compile`.
        path: of a file to write, which torch's memory viewer (pytorch.org/memory_viz) opens: what the arena holds now,
            and as its timeline the allocations of one step under the latest plan.

    Returns: nothing where nothing is enforced. Parameters, buffers and inputs that were there before the arena lie
        outside it.

    Raises:
        ArgumentError: if the path is none.
        LowtideError: as for `memory_stats`; if there is nothing to write, since the budget is not enforced.
    """
    session = session_of(model)
    hard_budget = session.budget_scope.hard_budget
    found = (
        ()
        if hard_budget is None
        else tuple(
            Holding(b.offset_B, b.requested_B, b.statement or ("a worker thread" if b.worker else b.phase) or "unknown")
            for b in hard_budget.arena.blocks()
        )
    )
    if path is not None:
        check_file(path)
        if hard_budget is None:
            raise LowtideError(NO_ARENA)
        write_snapshot(found, hard_budget.arena.capacity_B, session.active_plans.latest, path)
    return found


NO_ARENA = (
    "there is no arena to write a snapshot of: the budget is accounted and not enforced, or no step has been run yet. "
    "Take a step first; Plan.to_html shows a plan's addresses without one"
)


def misplaced_allocations(model: torch.nn.Module | None = None) -> tuple[MisplacedAllocation, ...]:
    """Names the allocations of lowtide's own code that were not served where the plan said, the first 256.

    Arguments:
        model: a fitted model; None for the only one, or else for the only one that was given to `torch.compile`.

    Raises:
        LowtideError: as for `memory_stats`.
    """
    hard_budget = session_of(model).budget_scope.hard_budget
    return () if hard_budget is None else hard_budget.arena.misplaced_allocations()


def _reserved_B(hard_budget: HardBudget, seen: ArenaStats) -> int:
    return hard_budget.outside_B + seen.high_water_B


def session_of(model: torch.nn.Module | None) -> Session:
    """The session of a fitted model; without one, of the only fitted model, or else of the only compiled one.

    Raises:
        LowtideError: if there is none, or not one alone.
    """
    if model is not None:
        handle = getattr(model, "lowtide", None)
        if not isinstance(handle, Fitted):
            raise LowtideError(
                "this model was not fitted: call lowtide.fit(model, budget=...) first. Of one that was given to "
                "torch.compile, ask without naming it: lowtide.memory_stats()"
            )
        return handle.session
    fitted = [handle.session for handle in fitted_models()]
    found = fitted or compiled_sessions()
    if len(found) == 1:
        return found[0]
    if not found:
        raise LowtideError("no model is fitted: name one, as in lowtide.memory_stats(model)")
    if fitted:
        raise LowtideError(f"{len(found)} models are fitted: name one, as in lowtide.memory_stats(model)")
    raise LowtideError(
        f"torch.compile made {len(found)} budgets: one for each model, and one for each graph of a model that breaks. "
        "Call lowtide.fit(model, budget=...) instead, and name the model"
    )
