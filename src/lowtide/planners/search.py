"""A search among the retentions of one program: its best plan, what it has found out on the way, its clock.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from lowtide._core import Retention
from lowtide.errors import PlanError
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.bounds.classes import BOUND_CLASS, CHOSEN_CLASS
from lowtide.planners.bounds.cut_model import CutSolution
from lowtide.planners.clock import Clock, Deadline
from lowtide.planners.implementations.choice import fixes_choices
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import GapNumbers, StageProgram, refuses_stages, stage_program

BRIEF = 10_000  # proposals: a search for less work does not spend many times as much on cuts and chains


class Search:
    """The mutable state of one solve; planners and their stages share it.

    Invariant: `retention` or `schedule`, if any, is one of `program` that fits `budget_B`, or a schedule that fits the
    problem's budget, and takes `time_ps`; the clock's bound holds for any schedule of `bound_class` within the
    problem's budget.

    Arguments:
        program: of the problem's graph; found if None.
        deadline: of a solve that has begun; the problem's, from now on, if None.
        watch: called with the progress.
    """

    def __init__(
        self,
        problem: Problem,
        program: StageProgram | None = None,
        *,
        deadline: Deadline | None = None,
        watch: Watch | None = None,
    ) -> None:
        deadline = Deadline(problem.time_limit_s) if deadline is None else deadline
        self.problem = problem
        self.program: StageProgram = stage_program(problem.graph) if program is None else program
        self.budget_B = problem.budget_B - self.program.reserve_B
        self.clock = Clock(deadline, self, self.program.time_ps, watch)
        self.clock.prove(self.program.time_ps)
        self.stats: dict[str, Any] = self.clock.stats
        self.bound_class = self.floor_class = BOUND_CLASS
        self.schedule: Schedule | None = None  # of planners whose plans are no retentions
        self.retention: GapNumbers | None = None
        self.lowest_retention: GapNumbers | None = None  # where the greedy descent ended
        self.time_ps: int | None = None
        self.winner = ""
        self.work = 0
        self.proved_impossible = False
        self.floor_B = 0
        self.smallest_B: int | None = None
        self.smallest_retention: GapNumbers | None = None  # which meet it
        self.floor_recipes: tuple[int, ...] = ()
        self.cuts_solved: dict[tuple[int, int, int, frozenset[int]], CutSolution] = {}  # stage, budget, nodes, kept

    @property
    def is_brief(self) -> bool:
        """Whether so little work was asked for that cuts and chains, which do not count as work, are kept short."""
        return self.problem.work < BRIEF

    @property
    def enough_ps(self) -> int:
        """A plan that takes no longer is close enough to the bound to stop."""
        return int(self.clock.bound_ps * (1.0 + self.clock.close))

    def offer(self, state: Retention) -> bool:
        """Takes the retention as the incumbent if it fits and is faster."""
        if not state.fits or (self.time_ps is not None and state.time_ps >= self.time_ps):
            return False
        self.retention, self.time_ps, self.winner = state.taus, state.time_ps, self.clock.stage
        self.schedule = None
        return True

    def offer_schedule(self, schedule: Schedule, time_ps: int) -> int:
        """Takes a legal schedule as the incumbent if it fits and is faster.

        Returns: its peak in bytes, simulated.
        """
        peak_B = simulate(self.problem.graph, schedule).peak_B
        if peak_B <= self.problem.budget_B and (self.time_ps is None or time_ps < self.time_ps):
            self.schedule, self.time_ps, self.winner = schedule, time_ps, self.clock.stage
            self.retention = None
            self.stats["peak_B"] = peak_B
        return peak_B

    def run(self, name: str, stage: Callable[[Search], object]) -> None:
        """Runs one stage of the solve and notes its seconds."""
        self.clock.run(name, lambda: stage(self))

    def state(self) -> Retention:
        """The incumbent, or everything kept."""
        state = self.program.keep_all(self.budget_B)
        if self.retention is not None and not state.assign(self.retention):
            raise AssertionError("an incumbent is always possible")
        return state

    def outcome(self, solver: str) -> Outcome:
        """The result as it stands."""
        schedule = self.schedule
        if self.retention is not None:
            state = self.state()
            schedule = self.program.lift(state)
            hides = self.program.hidden_B > 0  # then the schedule alone says when what is hidden comes and goes
            self.stats["peak_B"] = simulate(self.problem.graph, schedule).peak_B if hides else state.peak_B
        if schedule is not None:
            self.stats["winner"] = self.winner
        self.stats |= {"work": self.work, "elapsed_s": self.clock.elapsed_s}
        return Outcome(
            schedule,
            self.clock.status(impossible=self.proved_impossible),
            solver,
            bound_s=self.clock.proved_s(len(self.program.stages)),
            bound_class=self.bound_class + self._choices(),
            floor_B=self.floor_B,
            floor_class=self.floor_class + self._choices(),
            floor_recipes=self.floor_recipes,
            smallest_B=self.smallest_B,
            smallest=None if schedule is not None else self.smallest(),
            stats=self.stats,
        )

    def smallest(self) -> Schedule | None:
        """The plan that meets `smallest_B`; None where only its bytes are known."""
        if self.smallest_retention is None:
            return None
        state = self.program.keep_all(0)
        if not state.assign(self.smallest_retention):
            raise AssertionError("a retention that was possible stays possible")
        return self.program.lift(state)

    def _choices(self) -> str:
        return " (the first option of every group)" if fixes_choices(self.problem.graph) else ""


class AbstractSearchPlanner(AbstractPlanner):
    """A planner that looks for a plan of the problem's own program, step by step: `script` says how."""

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; too small a budget is an outcome, not a refusal."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """OPTIMAL where the plan takes what the bound says, else FEASIBLE; UNSOLVED or INFEASIBLE without a plan."""
        return conduct(problem, watch, self.name, self.refuses(problem), self.script)

    @abc.abstractmethod
    def script(self, search: Search) -> None:
        """Runs the steps of a search (`Search.run`), which offer plans and prove bounds; limits may cut it short."""


def conduct(
    problem: Problem,
    watch: Watch | None,
    solver: str,
    refusal: str | None,
    script: Callable[[Search], None],
    *,
    any_order: bool = False,
) -> Outcome:
    """Runs a planner's stages under the problem's limits.

    Arguments:
        solver: name of the planner, for the outcome.
        refusal: why the planner refuses the problem, or None.
        script: runs the stages; may be cut short by time or by Ctrl-C.
        any_order: whether first runs may come in another order than the program's (`base_order`).

    Raises:
        PlanError: if there is a refusal.
        KeyboardInterrupt: on Ctrl-C before there is a plan.
    """
    if refusal is not None:
        raise PlanError(refusal)
    deadline = Deadline(problem.time_limit_s)
    graph = base_order(problem.graph) if any_order else problem.graph
    search = Search(replace(problem, graph=graph), deadline=deadline, watch=watch)
    if graph is not problem.graph:
        search.bound_class = search.floor_class = CHOSEN_CLASS
    search.clock.conduct(lambda: script(search))
    return search.outcome(solver)
