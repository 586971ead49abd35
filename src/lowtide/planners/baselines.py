"""Plans of other methods for a graph, at every budget that they can meet: markers on a frontier's picture.

Their plans are scored by the same simulator, in live bytes: where addresses count, the holes between tensors are not
held against them.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lowtide.ir.frontier import Baseline, Point
from lowtide.ir.graph import Graph
from lowtide.ir.plan import DEFAULT_WORK, Outcome, Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.catalogue import CLASSICS
from lowtide.planners.classic.checkmate import Checkmate, LpRounding, RandomRounding
from lowtide.planners.clock import Deadline
from lowtide.planners.keep_all import keep_all_schedule

QUICK: tuple[AbstractPlanner, ...] = tuple(
    p for p in CLASSICS if not isinstance(p, Checkmate | LpRounding | RandomRounding)
)
"""The classical methods whose plans take seconds and not minutes."""

Watch = Callable[[str], None]
Ask = Callable[[int], Outcome | None]
"""Plans for a number of live bytes; None when time is over."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A method's plans, and a schedule for each."""

    baseline: Baseline
    schedules: tuple[Schedule, ...]


def baselines(
    graph: Graph,
    budgets_B: Iterable[int],
    *,
    planners: Sequence[AbstractPlanner] = QUICK,
    fixed_B: int = 0,
    seed: int = 0,
    work: int = DEFAULT_WORK,
    time_limit_s: float | None = None,
    watch: Watch | None = None,
) -> tuple[Asked, ...]:
    """Asks each method for its plans.

    Arguments:
        budgets_B: at which to ask; a plan stands at the bytes that it needs.
        planners: the methods.
        fixed_B: of every budget, bytes that belong to no value of the graph.
        seed, work: as for `Problem`.
        time_limit_s: for all of them; methods not asked by then say so.
        watch: told whose turn it is.

    Returns: one per method, in their order. Interrupted with Ctrl-C, those that were asked until then.
    """
    keep_all = simulate(graph, keep_all_schedule(graph))
    asked_B = sorted({b - fixed_B for b in budgets_B if b - fixed_B < keep_all.peak_B} | {keep_all.peak_B - 1})[::-1]
    deadline = Deadline(time_limit_s)
    found: list[Asked] = []

    def asking(planner: AbstractPlanner) -> Ask:
        def ask(live_B: int) -> Outcome | None:
            if deadline.is_over:
                return None
            return planner.solve(Problem(graph, live_B, seed, work, deadline.left_s))

        return ask

    try:
        for planner in planners:
            if watch is not None:
                watch(planner.name)
            reason = planner.refuses(Problem(graph, keep_all.peak_B, seed, work)) or ""
            schedules: list[Schedule] = []
            if not reason:
                schedules, reason = _walk(graph, asked_B, asking(planner))
            points = tuple(_point(graph, s, fixed_B, keep_all.time_s, planner.name) for s in schedules)
            found.append(Asked(Baseline(name=planner.name, points=points, reason=reason), tuple(schedules)))
    except KeyboardInterrupt:
        pass  # methods that are missing were not asked
    return tuple(found)


def _walk(graph: Graph, budgets_B: Sequence[int], ask: Ask) -> tuple[list[Schedule], str]:
    """Asks for plans downwards; where one needs less than was asked for, it serves the budgets down to its own peak.

    Arguments:
        budgets_B: live bytes, largest first.

    Returns: the plans, and why there is none.
    """
    schedules: list[Schedule] = []
    reason = "none of its plans needs less than keeping everything"
    pending, last_B = list(budgets_B), budgets_B[0] + 1
    while pending:
        asked_B = pending.pop(0)
        outcome = ask(asked_B)
        if outcome is None:
            reason = "time was over before its turn"
            break
        if outcome.schedule is not None:
            schedules.append(outcome.schedule)
            last_B = simulate(graph, outcome.schedule).peak_B
            pending = [b for b in pending if b < last_B]
        elif outcome.smallest_B is not None and asked_B < outcome.smallest_B < last_B:
            pending = [outcome.smallest_B]  # the least that any of its plans needs
        else:
            break
    return schedules, "" if schedules else reason


def _point(graph: Graph, schedule: Schedule, fixed_B: int, keep_all_s: float, name: str) -> Point:
    timeline = simulate(graph, schedule)
    return Point(
        budget_B=timeline.peak_B + fixed_B,
        status=Status.FEASIBLE.name,
        reserved_B=timeline.peak_B + fixed_B,
        time_s=timeline.time_s,
        overhead=timeline.time_s / keep_all_s - 1.0 if keep_all_s > 0 else 0.0,
        winner=name,
    )
