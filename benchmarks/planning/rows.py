"""One row of the planning table: one problem at one budget, planned, checked, simulated. Needs no torch.

Units: `_B` bytes, `_s` seconds; overheads and gaps are fractions of the time of keeping everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.simulate import simulate
from lowtide.planners.base import Progress
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import stage_program

CLOSE = 0.005
ALPHAS = (0.75, 0.5, 0.25, 0.1, 0.05)
PERCENTS = (80, 60, 50, 40, 30, 25, 20, 15)
OF_FLOOR = 1.05
_EQUAL = 1e-6  # relative
QUICK = ("60 %", "alpha 0.25")


@dataclass(frozen=True)
class Row:
    """What became of one budget.

    Arguments:
        label: how the budget was chosen.
        time_s, peak_B: simulated; None without a plan.
        bound_s: no plan of the bound's class is faster; the strongest of this budget's and of every larger one's.
        smallest_B: where no plan was found, the smallest budget for which one is known; None if none is.
        seconds: of planning.
        close_s: until the plan was within half a percent of the bound; None if it never was.
    """

    problem: str
    operators: int
    label: str
    budget_B: int
    plain_B: int
    plain_s: float
    floor_B: int
    time_s: float | None
    bound_s: float
    bound_class: str
    peak_B: int | None
    winner: str
    status: str
    smallest_B: int | None
    seconds: float
    close_s: float | None

    @property
    def percent(self) -> float:
        """The budget in percent of what keeping everything takes."""
        return 100.0 * self.budget_B / self.plain_B

    @property
    def alpha(self) -> float:
        """How far the budget is on the way from the floor to keep-all."""
        return (self.budget_B - self.floor_B) / (self.plain_B - self.floor_B)

    @property
    def overhead(self) -> float | None:
        """Of the plan."""
        return None if self.time_s is None else self.time_s / self.plain_s - 1.0

    @property
    def bound_overhead(self) -> float:
        """The least that the bound leaves possible."""
        return max(0.0, self.bound_s / self.plain_s - 1.0)

    @property
    def gap(self) -> float:
        """How much slower than the bound the plan may be; infinite without a plan."""
        overhead = self.overhead
        return float("inf") if overhead is None else max(0.0, (1.0 + overhead) / (1.0 + self.bound_overhead) - 1.0)

    def as_data(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return asdict(self)


@dataclass(frozen=True)
class Ladder:
    """A problem and its budgets, largest first."""

    name: str
    graph: Graph
    plain_B: int
    plain_s: float
    floor_B: int
    budgets: tuple[tuple[str, int], ...]


def ladder(name: str, graph: Graph, quick: bool) -> Ladder:
    """The budgets of one problem: shares of the way from the floor, shares of keep-all above the floor, 1.05 floors.

    Arguments:
        quick: two of them, for trying the benchmark.
    """
    plain = simulate(graph, keep_all_schedule(graph))
    floor_B = op_floor(stage_program(graph)).floor_B
    span_B = plain.peak_B - floor_B
    budgets = [(f"alpha {alpha:g}", floor_B + int(alpha * span_B)) for alpha in ALPHAS]
    budgets += [(f"{percent} %", plain.peak_B * percent // 100) for percent in PERCENTS]
    budgets.append((f"{OF_FLOOR} x floor", int(OF_FLOOR * floor_B)))
    chosen = [(label, size_B) for label, size_B in budgets if floor_B <= size_B and (not quick or label in QUICK)]
    return Ladder(name, graph, plain.peak_B, plain.time_s, floor_B, tuple(sorted(chosen, key=lambda b: -b[1])))


def climb(rungs: Ladder, limit_s: float | None, say: Callable[[str], None]) -> Iterator[Row]:
    """Plans every budget of a problem, each from nothing; a bound is handed on to the smaller budgets, where it holds."""
    bound_s, bound_class = 0.0, ""
    for label, budget_B in rungs.budgets:
        began_s = time.perf_counter()
        watcher = _Watcher(began_s)
        outcome = Portfolio().solve(Problem(rungs.graph, budget_B, time_limit_s=limit_s), watcher.watch)
        seconds = time.perf_counter() - began_s
        if outcome.bound_s > bound_s:
            bound_s, bound_class = outcome.bound_s, outcome.bound_class
        row = _row(rungs, label, budget_B, outcome, bound_s, bound_class, seconds, watcher.close_s)
        say(f"{rungs.name} {label}: {outcome.status.name}, gap {row.gap:.2%}, {seconds:.1f} s")
        yield row


def _row(
    rungs: Ladder,
    label: str,
    budget_B: int,
    outcome: Outcome,
    bound_s: float,
    bound_class: str,
    seconds: float,
    close_s: float | None,
) -> Row:
    time_s = peak_B = None
    if outcome.schedule is not None:
        check(rungs.graph, outcome.schedule, budget_B)
        timeline = simulate(rungs.graph, outcome.schedule)
        time_s, peak_B = timeline.time_s, timeline.peak_B
    row = Row(
        problem=rungs.name,
        operators=len(rungs.graph.program),
        label=label,
        budget_B=budget_B,
        plain_B=rungs.plain_B,
        plain_s=rungs.plain_s,
        floor_B=rungs.floor_B,
        time_s=time_s,
        bound_s=bound_s,
        bound_class=bound_class,
        peak_B=peak_B,
        winner=str(outcome.stats.get("winner", "none")),
        status=Status.OPTIMAL.name if _is_proved(time_s, bound_s) else outcome.status.name,
        smallest_B=outcome.smallest_B,
        seconds=seconds,
        close_s=close_s,
    )
    if row.close_s is None and row.gap <= CLOSE:  # it came close with the last word of planning, or by a shared bound
        return replace(row, close_s=seconds)
    return row


def _is_proved(time_s: float | None, bound_s: float) -> bool:
    return time_s is not None and time_s <= bound_s * (1.0 + _EQUAL)


@dataclass
class _Watcher:
    """Notes when a solve came close."""

    began_s: float
    close_s: float | None = None

    def watch(self, progress: Progress) -> None:
        if self.close_s is None and progress.time_s is not None and progress.time_s <= progress.bound_s * (1 + CLOSE):
            self.close_s = time.perf_counter() - self.began_s
