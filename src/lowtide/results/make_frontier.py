"""Makes a frontier from a profiled graph and the constraints of its plans. Needs no torch.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from msgspec.structs import replace

from lowtide.arguments import function, seconds, whole, yes_or_no
from lowtide.errors import BudgetError, InfeasibleBudget
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Covers, Environment, Outcome, PlanRecord, Status
from lowtide.ir.schedule import Schedule
from lowtide.planners.base import Watch as PlanWatch
from lowtide.planners.baselines import QUICK
from lowtide.planners.frontier import Solved, Watch, trace
from lowtide.planners.portfolio import Portfolio
from lowtide.record import Constraints, PlanOptions, PlanRequest, Start, make_record, plain_B
from lowtide.results.frontier import Frontier
from lowtide.units import Budget


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The effort of a search; see `planners.frontier.trace`.

    Arguments:
        baselines: whether to ask the quick classical methods.
    """

    points: int
    baselines: bool
    seed: int
    work: int
    time_limit_s: float | None
    watch: Watch | None

    def __post_init__(self) -> None:
        whole("points", self.points, example="24")
        whole("seed", self.seed)
        whole("work", self.work, example="5000")
        seconds("time_limit_s", self.time_limit_s)
        yes_or_no("baselines", self.baselines)
        function("watch", self.watch, "watch=print")


def traced(
    graph: Graph,
    effort: Effort,
    options: PlanOptions,
    *,
    constraints: Constraints,
    covers: Covers,
    environment: Environment,
) -> Frontier:
    """Plans a graph at every budget as one plan would be made: addresses, optimizer and reserve included.

    Arguments:
        options: which implementations the graph has, what may be offloaded, and the machine that it was
            predicted for; budgets and effort are said elsewhere.
        constraints: what the plans have to leave free.
        covers: what their budgets count.
        environment: in which the graph was profiled.

    Raises:
        BudgetError: if there are fewer than two points.
        KeyboardInterrupt: on Ctrl-C before keep-all is known.
    """
    if effort.points < 2:
        raise BudgetError(f"a frontier of {effort.points} budgets is none: ask for two at least")
    plans: list[PlanRecord] = []
    known: PlanRecord | None = None  # for the smallest budget that was named
    fixed_B = constraints.fixed_B(graph)
    options = dataclasses.replace(options, seed=effort.seed, work=effort.work)

    def solve(budget_B: int, start: Schedule | None, limit_s: float | None, tell: PlanWatch | None) -> Solved:
        nonlocal known
        try:
            request = PlanRequest(
                graph=graph,
                options=dataclasses.replace(options, budget=Budget(size_B=budget_B), time_limit_s=limit_s),
                constraints=constraints,
                covers=covers,
                environment=environment,
                device_B=lambda: budget_B,
            )
            begin = None if start is None else Start(schedule=start)
            made = make_record(request, watch=tell, start=begin, known=known)
        except InfeasibleBudget as error:
            known = error.proof if isinstance(error.proof, PlanRecord) else known
            status = Status.INFEASIBLE if budget_B < error.floor_B - constraints.reserve_B else Status.UNSOLVED
            return Solved(Outcome(None, status, Portfolio.name, floor_B=error.floor_B, smallest_B=error.smallest_B))
        plans.append(made)
        return Solved(replace(made.outcome, floor_B=made.outcome.floor_B + fixed_B), made.reserved_B, made.time_s)

    record = trace(
        graph,
        points=effort.points,
        solve=solve,
        keep_all_B=plain_B(graph, constraints),
        fixed_B=fixed_B,
        methods=QUICK if effort.baselines else (),
        seed=effort.seed,
        work=effort.work,
        time_limit_s=effort.time_limit_s,
        watch=effort.watch,
    )
    kind = "enforced" if constraints.enforced else "accounted"
    claims = replace(record, covers=covers, environment=environment, machine=options.machine or "", budget_kind=kind)
    return Frontier(claims, tuple(plans))
