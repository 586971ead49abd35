"""One problem at one budget with one menu of implementations: planned, checked, simulated. Needs no torch.

Units: `_B` bytes, `_s` seconds; overheads and gaps are fractions of the time of keeping everything, as the program runs it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

from benchmarks.implementations.problems import MACHINES, load
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.ops.base import IN_PLACE
from lowtide.ops.catalogue import enlarge
from lowtide.planners.base import Progress
from lowtide.planners.bounds.floors import joint_floor, op_floor
from lowtide.planners.implementations.candidates import all_candidates
from lowtide.planners.implementations.choice import chosen_options
from lowtide.planners.implementations.joint import has_choices
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import stage_program
from lowtide.profile.machines import load_machine
from lowtide.profile.roofline import predict_graph


@dataclass(frozen=True)
class Menu:
    """Which implementations there are to choose from.

    Arguments:
        numerics: None for those alone that the program runs.
        without: kinds and families that are left out.
    """

    name: str
    numerics: Numerics | None
    without: tuple[str, ...] = ()


SCHEDULE_ONLY = Menu("schedule only", None)
LEVELS = (SCHEDULE_ONLY, Menu("exact", Numerics.EXACT), Menu("reassociated", Numerics.REASSOCIATED))


@dataclass(frozen=True)
class Point:
    """What became of one budget.

    Arguments:
        label: how the budget was chosen.
        plain_B, plain_s: of keeping everything, as the program runs it.
        floor_B: proved for every schedule and every choice of the menu.
        time_s, peak_B: simulated; None without a plan.
        bound_s: no plan of the bound's class is faster; the strongest of this budget's and of every larger one's.
        smallest_B: where no plan was found, the smallest budget for which one is known; None if none is.
        seconds: of planning.
        chosen: per kind, how many groups run another implementation than the program's, and how many recipes overwrite.
    """

    network: str
    menu: str
    label: str
    budget_B: int
    plain_B: int
    plain_s: float
    floor_B: int
    time_s: float | None
    bound_s: float
    bound_class: str
    peak_B: int | None
    smallest_B: int | None
    status: str
    seconds: float
    chosen: dict[str, int]

    @property
    def percent(self) -> float:
        """The budget in percent of what keeping everything takes."""
        return 100.0 * self.budget_B / self.plain_B

    @property
    def overhead(self) -> float | None:
        """Of the plan; negative where other implementations are faster than the program's."""
        return None if self.time_s is None else self.time_s / self.plain_s - 1.0

    @property
    def bound_overhead(self) -> float:
        """The least that the bound leaves possible."""
        return self.bound_s / self.plain_s - 1.0

    @property
    def gap(self) -> float | None:
        """How much slower than the bound the plan may be; None without a plan."""
        return None if self.time_s is None else max(0.0, self.time_s / self.bound_s - 1.0)

    def as_data(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return asdict(self)


@dataclass(frozen=True)
class Case:
    """A problem with a menu: the graph, its menu's implementations added, and what keeping everything takes plainly."""

    network: str
    menu: Menu
    graph: Graph
    plain_B: int
    plain_s: float

    @cached_property
    def floor_B(self) -> int:
        """Proved for every schedule and every choice."""
        graph = base_order(self.graph)
        return (
            joint_floor(all_candidates(graph)).floor_B if has_choices(graph) else op_floor(stage_program(graph)).floor_B
        )


@cache
def case(network: str, menu: Menu) -> Case:
    """A problem of `implementation_problems` with a menu, the seconds of its machine for all of it.

    Raises:
        KeyError: if there is no such problem.
    """
    machine = load_machine(MACHINES[network])
    return case_of(network, load(network), menu, lambda graph: predict_graph(graph, machine))


def case_of(network: str, graph: Graph, menu: Menu, profile: Callable[[Graph], Graph]) -> Case:
    """A graph as captured with a menu.

    Arguments:
        profile: gives every recipe its seconds and its mini-trace.
    """
    graph = profile(graph)
    plain = simulate(graph, keep_all_schedule(graph))
    if menu.numerics is not None:
        graph = profile(enlarge(graph, menu.numerics, menu.without))
    return Case(network, menu, graph, plain.peak_B, plain.time_s)


def climb(
    subject: Case, budgets: Sequence[tuple[str, int]], limit_s: float | None, say: Callable[[str], None]
) -> list[Point]:
    """Plans every budget from nothing, the largest first; a bound is handed on to the smaller ones, where it holds.

    Arguments:
        budgets: labels and bytes.
        limit_s: of planning, per budget.
    """
    points: list[Point] = []
    for label, budget_B in sorted(budgets, key=lambda b: -b[1]):
        point, _ = planned(subject, label, budget_B, limit_s, points[-1] if points else None)
        say(f"{subject.network}, {subject.menu.name}, {label}: {summary(point)}")
        points.append(point)
    return points


def planned(
    subject: Case,
    label: str,
    budget_B: int,
    limit_s: float | None,
    larger: Point | None = None,
    enough: float | None = None,
) -> tuple[Point, Schedule | None]:
    """Plans one budget from nothing.

    Arguments:
        larger: of a budget that is no smaller, whose bound holds here too.
        enough: overhead of a plan that ends the search, as does a bound above it once there is a plan.
    """

    def watch(progress: Progress) -> None:
        if enough is None or progress.time_s is None:
            return
        most_s = (1.0 + enough) * subject.plain_s
        if progress.time_s <= most_s or progress.bound_s > most_s:
            raise KeyboardInterrupt  # as a person would end it

    began_s = time.perf_counter()
    outcome = Portfolio().solve(Problem(subject.graph, budget_B, time_limit_s=limit_s), watch)
    seconds = time.perf_counter() - began_s
    bound_s, bound_class = outcome.bound_s, outcome.bound_class
    if larger is not None and larger.bound_s > bound_s:
        bound_s, bound_class = larger.bound_s, larger.bound_class
    time_s = peak_B = None
    if outcome.schedule is not None:
        check(subject.graph, outcome.schedule, budget_B)
        timeline = simulate(subject.graph, outcome.schedule)
        time_s, peak_B = timeline.time_s, timeline.peak_B
    point = Point(
        network=subject.network,
        menu=subject.menu.name,
        label=label,
        budget_B=budget_B,
        plain_B=subject.plain_B,
        plain_s=subject.plain_s,
        floor_B=subject.floor_B,
        time_s=time_s,
        bound_s=bound_s,
        bound_class=bound_class,
        peak_B=peak_B,
        smallest_B=outcome.smallest_B,
        status=outcome.status.name,
        seconds=seconds,
        chosen={} if outcome.schedule is None else counted(subject.graph, outcome.schedule),
    )
    return point, outcome.schedule


def counted(graph: Graph, schedule: Schedule) -> dict[str, int]:
    """Per kind, how many groups run another option than the program's; in place, how many recipes that overwrite run."""
    ran = {step.recipe for step in schedule.steps if isinstance(step, Run)}
    options = chosen_options(graph, frozenset(ran)).items()
    kinds = Counter(graph.groups[g].kind for g, option in options if option)
    kinds[IN_PLACE] += sum(bool(graph.recipes[r].consumes) for r in ran.difference(graph.program))
    return {kind: count for kind, count in kinds.items() if count}


def summary(point: Point) -> str:
    """A point in a few words."""
    if point.overhead is None or point.gap is None:
        return f"{point.status.lower()}, {point.seconds:.1f} s"
    return f"{point.overhead:+.2%}, gap {point.gap:.2%}, {point.seconds:.1f} s"
