"""One frontier in the making: which budgets to plan next, from which plan, and what is known so far.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Status
from lowtide.ir.schedule import Schedule
from lowtide.planners.base import Progress
from lowtide.planners.baselines import Asked
from lowtide.planners.clock import GAP, Deadline
from lowtide.planners.start import STAGE as START
from lowtide.units import format_B

INTERRUPTED, OUT_OF_TIME = "interrupted", "time limit"
_ALPHAS = (0.25, 0.1, 0.05, 0.5, 0.75)  # of the distance from the floor to keep-all; the most useful first
_OF_FLOOR = (1.05, 1.1, 1.02)
_APART = 0.004  # of that distance: closer budgets are one
_SMALLEST_STEP = 1e-4  # of the whole picture: finer steps are not looked into
_EQUAL = 1e-6  # relative


@dataclass(frozen=True, slots=True)
class Pace:
    """Progress of a frontier.

    Arguments:
        number, points: the budget that is planned now, from 1, of so many.
        budget_B: in bytes.
        planning: of the solve; None between two.
        method: the other method that is asked now; empty while budgets are planned.
    """

    number: int
    points: int
    budget_B: int
    planning: Progress | None = None
    method: str = ""


Watch = Callable[[Pace], None]


@dataclass(frozen=True, slots=True)
class Solved:
    """What a solve came to; all bytes are in the terms of the budget.

    Arguments:
        reserved_B: what the plan takes of its budget, holes included; of no meaning without one.
        time_s: of the plan.
    """

    outcome: Outcome
    reserved_B: int = 0
    time_s: float = 0.0


Solve = Callable[[int, Schedule | None, float | None, Callable[[Progress], None] | None], Solved]
"""Plans for a budget, from a schedule to begin from, within seconds."""


def first_budgets(floor_B: int, keep_all_B: int, points: int) -> list[int]:
    """The usual budgets, largest first, below keep-all; at most `points`, the most useful ones."""
    span_B = keep_all_B - floor_B
    wanted = [floor_B + int(alpha * span_B) for alpha in _ALPHAS[:2]]
    wanted += [int(of_floor * floor_B) for of_floor in _OF_FLOOR[:1]]
    wanted += [floor_B + int(alpha * span_B) for alpha in _ALPHAS[2:]]
    wanted += [int(of_floor * floor_B) for of_floor in _OF_FLOOR[1:]]
    chosen: list[int] = []
    for budget_B in wanted:
        if budget_B < keep_all_B and all(abs(budget_B - c) > _APART * span_B for c in chosen):
            chosen.append(budget_B)
    return sorted(chosen[:points], reverse=True)


@dataclass
class Found:
    """What is known at one budget."""

    budget_B: int
    status: Status
    bound_s: float
    schedule: Schedule | None = None
    reserved_B: int = 0
    time_s: float = float("inf")
    winner: str = ""
    reason: str = ""

    def gap(self) -> float:
        return self.time_s / self.bound_s - 1.0 if self.bound_s > 0 else float("inf")


@dataclass
class FrontierSearch:
    """One frontier in the making.

    Invariant: `found` has one entry per budget that was tried or ruled out.
    """

    graph: Graph
    points: int
    solve: Solve
    keep_all_B: int
    deadline: Deadline
    watch: Watch | None
    methods: int  # how many others are to be asked
    found: dict[int, Found] = field(default_factory=dict)
    asked: tuple[Asked, ...] = ()
    stopped: str = ""
    barrier_B: int = 0  # the largest budget without a plan

    def run(self, ask_others: Callable[[Sequence[int], float | None], tuple[Asked, ...]]) -> None:
        """Fills `found` and `asked` as far as time and patience allow.

        Arguments:
            ask_others: at some budgets, within seconds.
        """
        self._tries = 0
        self.first = self._try(self.keep_all_B, None, shared=False)
        if self.first.schedule is None:
            return
        try:
            self._descend(first_budgets(self.first.floor_B, self.keep_all_B, self.points - 1))
            while not self.stopped and self._tries < self.points and (budget_B := self._widest_step()) is not None:
                self._descend([budget_B])
            self._again()
            if not self._over():
                self.asked = ask_others(sorted(self.found), self._share_s())
                if len(self.asked) < self.methods:
                    self.stopped = INTERRUPTED
                self._learn()
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED

    @property
    def planned(self) -> list[Found]:
        """What has a plan, largest budget first."""
        found = (f for f in self.found.values() if f.schedule is not None)
        return sorted(found, key=lambda f: -f.budget_B)

    def _descend(self, budgets_B: Sequence[int]) -> None:
        """Plans budgets, largest first, each from the plan above it."""
        for budget_B in budgets_B:
            if self._over():
                return
            if budget_B < self.barrier_B:
                self._rule_out(budget_B)
                continue
            above = [f for f in self.planned if f.budget_B > budget_B]
            outcome = self._try(budget_B, above[-1].schedule)
            if outcome.schedule is not None:
                continue
            self.barrier_B = max(self.barrier_B, budget_B)
            smallest_B, known_B = outcome.smallest_B, min(f.reserved_B for f in self.planned)
            if smallest_B is not None and budget_B < smallest_B < known_B and not self._over():
                self._try(smallest_B, above[-1].schedule)

    def _rule_out(self, budget_B: int) -> None:
        """Notes that a budget was not tried, because a larger one has no plan."""
        known = self.found.setdefault(budget_B, Found(budget_B, Status.UNSOLVED, 0.0))
        known.reason = f"not tried: no plan was found for {format_B(self.barrier_B)} either"

    def _again(self) -> None:
        """Solves once more, upwards, where a plan for fewer bytes is as fast: from that plan."""
        below: Found | None = None
        for found in reversed(self.planned):
            if below is not None and below.time_s <= found.time_s and found.gap() > GAP and not self._over():
                self._try(found.budget_B, below.schedule)
                found = self.found[found.budget_B]
            below = found if below is None or found.time_s < below.time_s else below

    def _learn(self) -> None:
        """Solves once more where another method has a plan that is clearly better than the curve: from that plan."""
        known = [(p, s) for a in self.asked for p, s in zip(a.baseline.points, a.schedules, strict=True)]
        for point, schedule in sorted(known, key=lambda k: (-k[0].budget_B, k[0].time_s)):
            best_s = min((f.time_s for f in self.planned if f.reserved_B <= point.budget_B), default=float("inf"))
            bound_s = max(f.bound_s for f in self.found.values() if f.budget_B >= point.budget_B)
            better = point.time_s is not None and point.time_s < best_s * (1.0 - _EQUAL)
            if better and best_s > bound_s * (1.0 + GAP) and not self._over():
                self._try(point.budget_B, schedule)
        if min(f.reserved_B for f in self.planned) < self.barrier_B:
            self.barrier_B = 0
            self._descend(sorted((b for b, f in self.found.items() if f.schedule is None), reverse=True))

    def _widest_step(self) -> int | None:
        """Halfway in the step of the curve that hides most of the picture; None if all are small."""
        curve = [(f, best) for f, best in served(self.found) if best is not None]
        if len(curve) < 2:
            return None
        whole_s, span_B = curve[-1][1].time_s, curve[-1][0].budget_B - curve[0][0].budget_B
        tall = _height(curve[0][1].time_s, whole_s)
        if span_B <= 0 or tall <= 0:
            return None
        steps = [(0.0, 0)]
        for (low, slow), (high, fast) in itertools.pairwise(curve):
            wide_B = fast.reserved_B - low.budget_B
            if wide_B > 2 * _APART * span_B:
                hidden = wide_B / span_B * (_height(slow.time_s, whole_s) - _height(high.bound_s, whole_s)) / tall
                steps.append((hidden, (fast.reserved_B + low.budget_B) // 2))
        size, middle_B = max(steps)
        return middle_B if size > _SMALLEST_STEP and middle_B not in self.found else None

    def _over(self) -> bool:
        if not self.stopped and self.deadline.is_over:
            self.stopped = OUT_OF_TIME
        return bool(self.stopped)

    def _share_s(self) -> float | None:
        """Seconds for what comes next."""
        left_s = self.deadline.left_s
        return None if left_s is None else max(0.0, left_s) / max(1, self.points - self._tries + 2)

    def _try(self, budget_B: int, start: Schedule | None, *, shared: bool = True) -> Outcome:
        """Solves for a budget, within its share of the time if it is `shared`, and notes what is new."""
        self._tries += budget_B not in self.found
        self._tell(budget_B, None)
        watch = None if self.watch is None else lambda progress: self._tell(budget_B, progress)
        solved = self.solve(budget_B, start, self._share_s() if shared else None, watch)
        self._note(budget_B, solved, start)
        outcome = solved.outcome
        if outcome.status is Status.INTERRUPTED:
            self.stopped = INTERRUPTED
        return outcome

    def _note(self, budget_B: int, solved: Solved, start: Schedule | None) -> None:
        outcome = solved.outcome
        new = Found(budget_B, outcome.status, outcome.bound_s)
        if outcome.schedule is None:
            new.reason = outcome.status.value
        else:
            new.schedule, new.reserved_B = outcome.schedule, solved.reserved_B
            new.time_s = solved.time_s
            new.winner = str(outcome.stats.get("winner", outcome.solver))
            if new.winner == START:
                new.winner = self._origin(outcome.schedule, start)
        old = self.found.get(budget_B)
        if old is not None:
            new.bound_s = max(new.bound_s, old.bound_s)
            if old.schedule is not None and old.time_s <= new.time_s:
                old.bound_s = new.bound_s
                return
        self.found[budget_B] = new

    def _origin(self, schedule: Schedule, start: Schedule | None) -> str:
        """Who found the plan from which a search began without bettering it."""
        if schedule != start:
            return "neighbour, shrunk"
        known = [(f.schedule, f.winner) for f in self.found.values()]
        known += [(s, a.baseline.name) for a in self.asked for s in a.schedules]
        return next((winner for other, winner in known if other is start), "neighbour")

    def _tell(self, budget_B: int, progress: Progress | None) -> None:
        if self.watch is not None:
            self.watch(Pace(min(self._tries, self.points), self.points, budget_B, progress))

    def tell_method(self, name: str) -> None:
        """Says whose turn it is."""
        if self.watch is not None:
            self.watch(Pace(self.points, self.points, 0, method=name))


def _height(time_s: float, whole_s: float) -> float:
    """Of a time in the picture, whose scale is the square root: small overheads are the ones that people choose."""
    return math.sqrt(max(0.0, time_s / whole_s - 1.0)) if whole_s > 0 else 0.0


def served(found: dict[int, Found]) -> list[tuple[Found, Found | None]]:
    """Per budget, smallest first, what is known there, and the fastest plan that it has the bytes for."""
    every = sorted(found.values(), key=lambda f: f.budget_B)
    best: Found | None = None
    waiting = sorted((f for f in every if f.schedule is not None), key=lambda f: -f.reserved_B)
    served = []
    for here in every:
        while waiting and waiting[-1].reserved_B <= here.budget_B:
            plan = waiting.pop()
            best = plan if best is None or plan.time_s < best.time_s else best
        served.append((here, best))
    return served
