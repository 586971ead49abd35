"""One problem at one budget over one link: planned, checked, simulated. Needs no torch.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from msgspec.structs import replace

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed
from lowtide.ir.machine import Link, Machine
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.bounds.floors import working_set
from lowtide.planners.offload.extremes import run_once
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order

_CLIMB = (1.0, 1.005, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.18, 1.25, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
LATENCY_s = 1e-5


@dataclass(frozen=True)
class Result:
    """What a planner made of a problem.

    Arguments:
        time_s, peak_B, host_B, sent_B: simulated; None without a plan.
        bound_s: no plan of the planner's class is faster.
        smallest_B: where there is no plan, the smallest budget for which one is known; None if none is.
        seconds: of planning, by the clock; `processor_s` by the processor, threads added up.
        hosted: persistent values that have their home on the host.
    """

    time_s: float | None
    bound_s: float
    peak_B: int | None
    host_B: int | None
    smallest_B: int | None
    status: str
    seconds: float
    processor_s: float = 0.0
    hosted: int = 0

    def as_data(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return asdict(self)


def linked(rate_Bps: float) -> Machine:
    """A machine whose host is so many bytes per second away, in each direction at once."""
    ends = (("device", "host", "to_host"), ("host", "device", "from_host"))
    return Machine(f"{rate_Bps / 1e9:g} GB/s", links=tuple(Link(*end, rate_Bps, LATENCY_s) for end in ends))


def result(planner: AbstractPlanner, problem: Problem, judged: Problem | None = None) -> Result:
    """Plans, checks and simulates; a planner that refuses the problem has no plan.

    Arguments:
        judged: the problem that the plan has to solve, where the planner gets a narrower one.
    """
    if reason := planner.refuses(problem):
        return Result(None, 0.0, None, None, None, f"refused: {reason}", 0.0)
    began_s, spent_s = time.perf_counter(), time.process_time()
    outcome = planner.solve(problem)
    return scored(judged or problem, outcome, time.perf_counter() - began_s, time.process_time() - spent_s)


def scored(problem: Problem, outcome: Outcome, seconds: float, processor_s: float) -> Result:
    """An outcome by the one simulator, after the one checker."""
    status, homes = outcome.status.name.lower(), len(outcome.hosted)
    if outcome.schedule is None:
        return Result(None, outcome.bound_s, None, None, outcome.smallest_B, status, seconds, processor_s)
    graph = housed(problem.graph, outcome.hosted)
    check(graph, outcome.schedule, problem.budget_B, host_budget_B=problem.host_budget_B)
    timeline = simulate(graph, outcome.schedule, problem.machine)
    host_B = dict(timeline.memory_peaks_B).get("host", 0)
    return Result(timeline.time_s, outcome.bound_s, timeline.peak_B, host_B, None, status, seconds, processor_s, homes)


def ours(graph: Graph, budget_B: int, machine: Machine | None, *, work: int, limit_s: float | None = None) -> Result:
    """The default planner; without a machine it moves nothing."""
    return result(Portfolio(), _asked(graph, budget_B, machine, work, limit_s))


def ours_once(graph: Graph, budget_B: int, machine: Machine, *, work: int, limit_s: float | None = None) -> Result:
    """The default planner where nothing may run twice."""
    asked = _asked(graph, budget_B, machine, work, limit_s)
    return result(Portfolio(), replace(asked, graph=run_once(base_order(graph))), asked)


def _asked(graph: Graph, budget_B: int, machine: Machine | None, work: int, limit_s: float | None) -> Problem:
    host_B = 0 if machine is None else None
    return Problem(graph, budget_B, work=work, time_limit_s=limit_s, machine=machine, host_budget_B=host_B)


def smallest_planned(
    graph: Graph, machine: Machine | None, *, work: int, limit_s: float | None, floor_B: int, top_B: int
) -> tuple[int, Result] | None:
    """The smallest budget, of some over the floor, at which a plan is found; its peak, and the plan.

    Arguments:
        floor_B: proved.
        top_B: from which on everything fits.
    """
    for factor in _CLIMB:
        budget_B = min(top_B, int(factor * floor_B) + 1)
        found = ours(graph, budget_B, machine, work=work, limit_s=limit_s)
        if found.peak_B is not None:
            return found.peak_B, found
        if budget_B == top_B:
            return None
    return None


def largest(fits: Callable[[int], bool], most: int, step: int) -> int:
    """The largest multiple of a step, up to `most`, that fits; 0 if none does. What fits is taken to be monotone."""
    low, high = 0, most // step
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle * step):
            low = middle
        else:
            high = middle - 1
    return low * step


def floor_B(graph: Graph, *, persistent_may_move: bool = True) -> int:
    """Proved for any recomputation and any movement."""
    return working_set(graph, persistent_may_move=persistent_may_move).floor_B
