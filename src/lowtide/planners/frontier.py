"""The least time at every budget from the floor to keep-all, for one graph.

From keep-all downwards each solve begins from the plan of the budget above it. First come a few usual budgets; the
others go where least is known: into the widest step of the curve, as the picture shows it. A budget whose plan is no
faster than one for fewer bytes is solved once more from that one. Then other methods are asked; where one of them knows
a plan that is better than the curve, there is another solve, from that plan. In the end a plan serves every larger
budget and a bound holds for every smaller one, so that both only fall as budgets grow.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from lowtide.ir.frontier import FrontierRecord, Point
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.housing import housed
from lowtide.ir.machine import Machine
from lowtide.ir.plan import DEFAULT_WORK, Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner, Progress
from lowtide.planners.baselines import baselines
from lowtide.planners.clock import Deadline
from lowtide.planners.frontier_search import Found, FrontierSearch, Solve, Solved, Watch, served
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order

POINTS = 24
WORK = DEFAULT_WORK // 4  # at each budget: it begins from a neighbour's plan
_EQUAL = 1e-6  # relative


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
