"""One solver on one graph and budget: an event whenever it has a better plan or a stronger bound, and at its end.

Time begins when the graph is read; building a model counts.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from benchmarks.runner import HandOver
from lowtide.ir.check import check
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.ir.text import load_graph
from lowtide.planners.base import Progress
from lowtide.planners.bounds.checkmate import CheckmateModel
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.residence import residence
from lowtide.planners.reductions.stages import stage_program

ANY_NODES = 2**31 - 1
_CLOSE = 1e-5  # relative; the bound is a little less than the solver's


class Teller:
    """Hands over what changed since the last event."""

    def __init__(self, hand_over: HandOver) -> None:
        self.hand_over = hand_over
        self.begun_s = time.perf_counter()
        self.last: tuple[float, float] = (math.inf, -math.inf)

    def event(self, **facts: Any) -> None:
        """One event."""
        self.hand_over({"at_s": time.perf_counter() - self.begun_s} | facts)

    def found(self, time_s: float, bound_s: float) -> None:
        """A plan's seconds, infinite if there is none, and the bound on them."""
        if (time_s, bound_s) != self.last:
            self.last = (time_s, bound_s)
            self.event(time_s=time_s if math.isfinite(time_s) else None, bound_s=bound_s)


def solve(hand_over: HandOver, solver: str, file: str, budget_B: int, limit_s: float) -> None:
    """Solves in a process of its own.

    Arguments:
        solver: "portfolio" or "checkmate".
        file: of the graph.
    """
    problem = Problem(load_graph(Path(file)), budget_B, time_limit_s=limit_s)
    teller = Teller(hand_over)
    (_portfolio if solver == "portfolio" else _checkmate)(problem, teller)


def _portfolio(problem: Problem, teller: Teller) -> None:
    def watch(progress: Progress) -> None:
        teller.found(math.inf if progress.time_s is None else progress.time_s, progress.bound_s)

    outcome = Portfolio().solve(problem, watch)
    size = f"{len(problem.graph.program)} recipes"
    _end(teller, problem, outcome.schedule, outcome.bound_s, outcome.status.name.lower(), size)


def _checkmate(problem: Problem, teller: Teller) -> None:
    program = stage_program(problem.graph)
    least_ps = program.time_ps
    model = CheckmateModel(program, problem.budget_B)
    size = f"{len(model.cost)} x {len(model._least)}"
    teller.event(size=size)
    left_s = (problem.time_limit_s or math.inf) - (time.perf_counter() - teller.begun_s)

    def told(found_ps: float, bound_ps: float) -> None:
        teller.found((least_ps + found_ps) * 1e-12, (least_ps + bound_ps) * 1e-12)

    solution = model.solve(nodes=ANY_NODES, limit_s=max(0.01, left_s), told=told)
    schedule = None
    if solution.there is not None:
        plan = residence(program, [{v for v, x in row.items() if x > 0.5} for row in solution.there])
        schedule = None if plan is None else program.lift(plan)
    bound_s = (least_ps + solution.bound_ps) * 1e-12
    spent_s = time.perf_counter() - teller.begun_s
    if solution.impossible:
        status = "impossible in its class"
    elif schedule is not None and simulate(problem.graph, schedule).time_s <= bound_s * (1.0 + _CLOSE):
        status = "optimal in its class"
    else:
        out_of_time = problem.time_limit_s is not None and spent_s >= problem.time_limit_s - 1.0
        status = "at the limit" if out_of_time else "gave up, of memory"
    _end(teller, problem, schedule, bound_s, status, size)


def _end(teller: Teller, problem: Problem, schedule: Schedule | None, bound_s: float, status: str, size: str) -> None:
    """The last event: the plan, checked; a solver's tolerances may let it exceed the budget."""
    time_s = over_B = None
    if schedule is not None:
        check(problem.graph, schedule)
        timeline = simulate(problem.graph, schedule)
        time_s, over_B = timeline.time_s, max(0, timeline.peak_B - problem.budget_B)
    teller.event(time_s=time_s, bound_s=bound_s, over_B=over_B, status=status, size=size, end=True)
