"""The least time at every budget from the floor to keep-all, for one graph.

From keep-all downwards each solve begins from the plan of the budget above it. First come a few usual budgets; the
others go where least is known: into the widest step of the curve, as the picture shows it. A budget whose plan is no
faster than one for fewer bytes is solved once more from that one. Then other methods are asked; where one of them knows
a plan that is better than the curve, there is another solve, from that plan. In the end a plan serves every larger
budget and a bound holds for every smaller one, so that both only fall as budgets grow.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from lowtide.ir.frontier import FrontierRecord, Point
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.housing import housed
from lowtide.ir.machine import Machine
from lowtide.ir.plan import DEFAULT_WORK, Outcome, Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner, Progress
from lowtide.planners.baselines import Asked, baselines
from lowtide.planners.clock import GAP, Deadline
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
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
    usual = [floor_B + int(alpha * span_B) for alpha in _ALPHAS[:2]]
    usual += [int(of_floor * floor_B) for of_floor in _OF_FLOOR[:1]]
    usual += [floor_B + int(alpha * span_B) for alpha in _ALPHAS[2:]]
    usual += [int(of_floor * floor_B) for of_floor in _OF_FLOOR[1:]]
    chosen: list[int] = []
    for budget_B in usual:
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


POINTS = 24
WORK = DEFAULT_WORK // 4  # at each budget: it begins from a neighbour's plan


def trace(
    graph: Graph,
    *,
    points: int = POINTS,
    solve: Solve | None = None,
    keep_all_B: int | None = None,
    fixed_B: int = 0,
    methods: Sequence[AbstractPlanner] = (),
    seed: int = 0,
    work: int = WORK,
    time_limit_s: float | None = None,
    watch: Watch | None = None,
) -> FrontierRecord:
    """Plans a profiled graph at budgets from keep-all to the floor.

    Arguments:
        points: how many budgets to plan for, at least 2; fewer where the curve has no step left worth a look.
        solve: plans for one budget; the portfolio for live bytes if None.
        keep_all_B: the budget that keeping everything needs; its live bytes if None.
        fixed_B: of every budget, bytes that belong to no value of the graph.
        methods: others, to compare with (`planners.baselines.QUICK`).
        seed: the same seed and work give the same frontier.
        work: effort at each budget (`Problem`); an easy one needs less.
        time_limit_s: for the whole; what is left is shared evenly by the budgets to come, and by the other methods
            together as if they were one more. Once over, the points so far are the result, and it says so.
        watch: told how far it is.

    Returns: the frontier. Interrupted with Ctrl-C, it has the points so far, and says so.

    Raises:
        PlanError: if the graph is refused.
        KeyboardInterrupt: on Ctrl-C before keep-all is known.
    """
    keep_all = simulate(graph, keep_all_schedule(graph))
    if keep_all_B is None:
        keep_all_B = keep_all.peak_B + fixed_B
    if solve is None:
        solve = solver(graph, Portfolio(), seed=seed, work=work, fixed_B=fixed_B)
    search = FrontierSearch(graph, max(2, points), solve, keep_all_B, Deadline(time_limit_s), watch, len(methods))
    search.run(
        lambda budgets_B, limit_s: baselines(
            base_order(graph),  # the order of the curve's plans: its bound holds for all of them
            budgets_B,
            planners=methods,
            fixed_B=fixed_B,
            seed=seed,
            work=work,
            time_limit_s=limit_s,
            watch=search.tell_method,
        )
    )
    first, shown = search.first, _points(search.found, keep_all.time_s)
    return FrontierRecord(
        name=graph.name,
        key=graph.key,
        floor_B=first.floor_B,
        smallest_B=min((p.reserved_B for p in shown if p.reserved_B is not None), default=None),
        keep_all_B=keep_all_B,
        keep_all_s=keep_all.time_s,
        points=shown,
        baselines=tuple(a.baseline for a in search.asked),
        floor_class=first.floor_class,
        floor_operators=tuple(_named(graph.recipes[r]) for r in first.floor_recipes[:3]),
        fixed_B=fixed_B,
        bound_class=first.bound_class,
        planner=first.solver,
        seed=seed,
        work=work,
        stopped=search.stopped,
    )


def solver(
    graph: Graph,
    planner: AbstractPlanner,
    *,
    seed: int,
    work: int,
    fixed_B: int = 0,
    machine: Machine | None = None,
    host_budget_B: int | None = 0,
) -> Solve:
    """Plans for live bytes, without those that are fixed; a machine with links may offload values."""

    def solve(
        budget_B: int, start: Schedule | None, limit_s: float | None, watch: Callable[[Progress], None] | None
    ) -> Solved:
        problem = Problem(graph, budget_B - fixed_B, seed, work, limit_s, start, machine, host_budget_B)
        found = planner.solve(problem, watch)
        smallest_B = None if found.smallest_B is None else found.smallest_B + fixed_B
        outcome = replace(found, floor_B=found.floor_B + fixed_B, smallest_B=smallest_B)
        if found.schedule is None:
            return Solved(outcome)
        timeline = simulate(housed(graph, found.hosted) if found.hosted else graph, found.schedule, machine)
        return Solved(outcome, timeline.peak_B + fixed_B, timeline.time_s)

    return solve


def _points(found: dict[int, Found], keep_all_s: float) -> tuple[Point, ...]:
    """Carries plans to all budgets that have the bytes for them, and bounds to smaller ones."""
    bound_s = 0.0
    for budget_B in sorted(found, reverse=True):
        bound_s = found[budget_B].bound_s = max(bound_s, found[budget_B].bound_s)
    return tuple(_point(here, best, keep_all_s) for here, best in reversed(served(found)))


def _point(here: Found, best: Found | None, keep_all_s: float) -> Point:
    """A budget with the best plan for it, which may have been found at another one."""
    bound_overhead = max(0.0, here.bound_s / keep_all_s - 1.0) if keep_all_s > 0 else 0.0
    if best is None:
        return Point(
            budget_B=here.budget_B, status=here.status.name, bound_s=here.bound_s, bound_overhead=bound_overhead,
            reason=here.reason,
        )  # fmt: skip
    gap = max(0.0, best.time_s / here.bound_s - 1.0) if here.bound_s > 0 else None
    status = best.status
    if gap is not None and gap <= _EQUAL:
        status = Status.OPTIMAL
    elif status is Status.OPTIMAL:
        status = Status.FEASIBLE
    return Point(
        budget_B=here.budget_B,
        status=status.name,
        bound_s=here.bound_s,
        bound_overhead=bound_overhead,
        reserved_B=best.reserved_B,
        time_s=best.time_s,
        overhead=best.time_s / keep_all_s - 1.0 if keep_all_s > 0 else 0.0,
        gap=gap,
        winner=best.winner,
    )


def _named(recipe: Recipe) -> str:
    """An operator with its place in the user's source, or in the model."""
    origin = recipe.origin
    place = origin.source or origin.module
    return f"{recipe.op} ({place})" if place else recipe.op
