"""One solve in progress: the incumbent, the bound, the limits, and who is told about them.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from lowtide._core import Retention
from lowtide.errors import PlanError
from lowtide.ir.plan import DEFAULT_WORK, Outcome, Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import Progress, Watch
from lowtide.planners.bounds.classes import BOUND_CLASS, CHOSEN_CLASS
from lowtide.planners.bounds.cut_model import CutSolution
from lowtide.planners.implementations.first_option import fixes_choices
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import StageProgram, stage_program

GAP = 0.005  # close enough to stop: the plan is at most this much slower than the bound
_EXACT = 1e-9  # relative; float sums of seconds are not closer
_EQUAL = 1e-6  # relative; the solver's dual bounds are not closer


BRIEF = 10_000  # proposals: a search for less work does not spend many times as much on cuts and chains
STEPS = 10_000  # of training in which the default search has to pay for itself


def worth_s(time_ps: float, bound_ps: float, work: int) -> float:
    """Seconds of searching that can pay for themselves: what may be gained in `STEPS` steps, more for more work.

    Nobody gets back the seconds of a long search for a gap of microseconds.
    """
    return (time_ps - bound_ps) * 1e-12 * STEPS * work / DEFAULT_WORK


class OutOfTime(Exception):
    """The problem's time limit has passed."""


class Search:
    """The mutable state of one solve; planners and their stages share it.

    Invariant: `taus` or `schedule`, if any, is a retention of `program` that fits `budget_B`, or a schedule that fits
    the problem's budget, and takes `time_ps`; `bound_ps` is a proved lower bound on any schedule of `bound_class`
    within the problem's budget.
    """

    def __init__(
        self,
        problem: Problem,
        watch: Watch | None = None,
        began_s: float | None = None,
        program: StageProgram | None = None,
    ) -> None:
        self.problem = problem
        self.program: StageProgram = stage_program(problem.graph) if program is None else program
        self.budget_B = problem.budget_B - self.program.reserve_B
        self.bound_ps = float(self.program.time_ps)
        self.bound_class = self.floor_class = BOUND_CLASS
        self.schedule: Schedule | None = None  # of planners whose plans are no retentions
        self.taus: NDArray[np.int32] | None = None
        self.lowest_taus: NDArray[np.int32] | None = None  # where the greedy descent ended
        self.time_ps: int | None = None
        self.winner = ""
        self.stage = ""
        self.work = 0
        self.proved_impossible = False
        self.floor_B = 0
        self.smallest_B: int | None = None
        self.smallest_taus: NDArray[np.int32] | None = None  # which meet it
        self.floor_recipes: tuple[int, ...] = ()
        self.stats: dict[str, Any] = {}
        self.cuts_solved: dict[tuple[int, int, int, frozenset[int]], CutSolution] = {}  # stage, budget, nodes, kept
        self._watch = watch
        self._began_s = time.monotonic() if began_s is None else began_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the solve began."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit; None without one."""
        limit_s = self.problem.time_limit_s
        return None if limit_s is None else limit_s - self.elapsed_s

    @property
    def until_s(self) -> float | None:
        """The time limit by the monotonic clock; None without one."""
        limit_s = self.problem.time_limit_s
        return None if limit_s is None else self._began_s + limit_s

    @property
    def is_brief(self) -> bool:
        """Whether so little work was asked for that cuts and chains, which do not count as work, are kept short."""
        return self.problem.work < BRIEF

    @property
    def gap(self) -> float:
        """How much slower than the bound the incumbent may be; infinite without one."""
        if self.time_ps is None:
            return float("inf")
        return max(0.0, self.time_ps / self.bound_ps - 1.0) if self.bound_ps > 0 else 0.0

    @property
    def enough_ps(self) -> int:
        """A plan that takes no longer is close enough to the bound to stop."""
        return int(self.bound_ps * (1.0 + GAP))

    def tick(self) -> None:
        """Tells the watcher, and stops the solve when its time is over.

        Raises:
            OutOfTime: then.
        """
        if self._watch is not None:
            time_s = None if self.time_ps is None else self.time_ps * 1e-12
            plain_s = self.program.time_ps * 1e-12
            self._watch(Progress(self.stage, self.elapsed_s, time_s, self.bound_ps * 1e-12, self.work, plain_s))
        if self.left_s is not None and self.left_s <= 0:
            raise OutOfTime

    def offer(self, state: Retention) -> bool:
        """Takes the retention as the incumbent if it fits and is faster."""
        if not state.fits or (self.time_ps is not None and state.time_ps >= self.time_ps):
            return False
        self.taus, self.time_ps, self.winner = state.taus, state.time_ps, self.stage
        self.schedule = None
        return True

    def offer_schedule(self, schedule: Schedule, time_ps: int) -> int:
        """Takes a legal schedule as the incumbent if it fits and is faster.

        Returns: its peak in bytes, simulated.
        """
        peak_B = simulate(self.problem.graph, schedule).peak_B
        if peak_B <= self.problem.budget_B and (self.time_ps is None or time_ps < self.time_ps):
            self.schedule, self.time_ps, self.winner = schedule, time_ps, self.stage
            self.taus = None
            self.stats["peak_B"] = peak_B
        return peak_B

    def prove(self, bound_ps: float) -> None:
        """Notes a proved lower bound on the time of any schedule."""
        self.bound_ps = max(self.bound_ps, bound_ps)

    def run(self, name: str, stage: Callable[[Search], object]) -> None:
        """Runs one stage of the solve and notes its seconds."""
        self.stage = name
        start_s = self.elapsed_s
        try:
            self.tick()
            stage(self)
        finally:
            key = f"{name}_s"
            self.stats[key] = self.stats.get(key, 0.0) + self.elapsed_s - start_s

    def retention(self) -> Retention:
        """The incumbent, or everything kept."""
        state = self.program.keep_all(self.budget_B)
        if self.taus is not None and not state.assign(self.taus):
            raise AssertionError("an incumbent is always possible")
        return state

    def outcome(self, solver: str, interrupted: bool = False) -> Outcome:
        """The result as it stands."""
        schedule = self.schedule
        if self.taus is not None:
            state = self.program.keep_all(self.budget_B)
            if not state.assign(self.taus):
                raise AssertionError("an incumbent is always possible")
            schedule = self.program.lift(state)
            hides = self.program.hidden_B > 0  # then the schedule alone says when what is hidden comes and goes
            self.stats["peak_B"] = simulate(self.problem.graph, schedule).peak_B if hides else state.peak_B
        if schedule is not None:
            self.stats["winner"] = self.winner
        self.stats |= {"work": self.work, "elapsed_s": self.elapsed_s}
        return Outcome(
            schedule,
            self._status(interrupted),
            solver,
            bound_s=self._bound_s(),
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
        if self.smallest_taus is None:
            return None
        state = self.program.keep_all(0)
        if not state.assign(self.smallest_taus):
            raise AssertionError("a retention that was possible stays possible")
        return self.program.lift(state)

    def _bound_s(self) -> float:
        """The bound in seconds, less what rounding each recipe to picoseconds may have added."""
        return max(0.0, self.bound_ps - len(self.program.stages)) * 1e-12 * (1.0 - _EXACT)

    def _choices(self) -> str:
        return " (the first option of every group)" if fixes_choices(self.problem.graph) else ""

    def _status(self, interrupted: bool) -> Status:
        if self.time_ps is None:
            return Status.INFEASIBLE if self.proved_impossible else Status.UNSOLVED
        if self.time_ps <= self.bound_ps * (1.0 + _EQUAL):
            return Status.OPTIMAL
        return Status.INTERRUPTED if interrupted else Status.FEASIBLE


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
    began_s = time.monotonic()
    graph = base_order(problem.graph) if any_order else problem.graph
    search = Search(replace(problem, graph=graph), watch, began_s)
    if graph is not problem.graph:
        search.bound_class = search.floor_class = CHOSEN_CLASS
    interrupted = False
    try:
        script(search)
    except OutOfTime:
        search.stats["out_of_time"] = True
    except KeyboardInterrupt:
        if search.time_ps is None:
            raise
        interrupted = True
    return search.outcome(solver, interrupted)
