"""One solve for plans that offload values, in progress: the best plan by exact time, the bound, the limits.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import InitVar, dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from lowtide._core import Retention
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed
from lowtide.ir.machine import Machine
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import Schedule
from lowtide.planners.base import Progress, Watch
from lowtide.planners.clock import Clock, Deadline
from lowtide.planners.greedy import mend
from lowtide.planners.offload.movement import LEAST_B, Rates
from lowtide.planners.offload.transfers import Timing, estimated_s, measured, timing
from lowtide.planners.offload.waits import with_waits
from lowtide.planners.reductions.stages import GapNumbers, StageProgram, stage_program
from lowtide.planners.search import Search

CLOSE = 1e-3  # closer to the bound than other solves stop: a cut proves more here, and a plan is soon better
_DROPS = 400  # drops that make a start fit
_LIGHTER = 12  # times that copies are taken back where the host is full
_EQUAL = 1e-9


@dataclass(frozen=True)
class Found:
    """A plan.

    Arguments:
        timing: its schedule, timed.
        hosted: what is host-resident.
        candidate: where it came from; None for a plan that offloads nothing.
        retention: its retention there.
        by: which stage of the solve found it.
    """

    timing: Timing
    hosted: tuple[int, ...]
    candidate: OffloadCandidate | None
    retention: GapNumbers | None
    by: str


@dataclass
class OffloadCandidate:
    """A choice of options and of host-resident values, and what may be offloaded in it.

    Arguments:
        program: of the graph with these host-resident values.
        hosted: what is host-resident.
    """

    program: StageProgram
    hosted: tuple[int, ...]

    def price(self, machine: Machine, share: float) -> None:
        """Lets a second of the link cost so many seconds of compute."""
        rates = Rates.of(machine)
        self.program.core.set_prices(share * rates.to_s_per_B * 1e12, share * rates.from_s_per_B * 1e12)


@dataclass
class OffloadSearch:
    """The mutable state of one solve.

    Invariant: `best` is legal within both budgets and the fastest plan seen; the clock's bound holds for every schedule
    of `bound_class` within them.
    """

    problem: Problem  # its first runs in the order of the class
    deadline: InitVar[Deadline]
    watch: InitVar[Watch | None]
    bound_class: str
    best: Found | None = None
    lowest_B: int | None = None  # least device bytes that a plan was found to need
    lowest: tuple[Schedule, tuple[int, ...]] | None = None  # that plan, and its host-resident values
    work: int = 0

    def __post_init__(self, deadline: Deadline, watch: Watch | None) -> None:
        plain_ps = sum(self.graph.recipes[r].time_s for r in self.graph.program) * 1e12
        self.clock = Clock(deadline, self, plain_ps, watch, CLOSE)
        self.stats: dict[str, Any] = self.clock.stats

    @property
    def time_ps(self) -> float | None:
        """Of the best plan."""
        return None if self.best is None else self.best.timing.time_s * 1e12

    @property
    def machine(self) -> Machine:
        assert self.problem.machine is not None
        return self.problem.machine

    @property
    def graph(self) -> Graph:
        return self.problem.graph

    @cached_property
    def still(self) -> StageProgram:
        """The graph's own program, in which nothing is offloaded."""
        return stage_program(self.graph)

    def tell(self, progress: Progress) -> None:
        """What a search for one candidate says, told of the whole solve: to it copies take no time."""
        self.clock.relay(progress, counts=False)

    @property
    def least_B(self) -> int:
        """Smaller values are not worth a copy of their own."""
        return min(LEAST_B, max(1, self.problem.budget_B >> 11))

    def candidate(self, graph: Graph, hosted: Collection[int], movable: Collection[int]) -> OffloadCandidate:
        """Begins with some host-resident values and some that may be offloaded."""
        host_resident = tuple(sorted(hosted if self.problem.host_resident is None else self.problem.host_resident))
        return OffloadCandidate(stage_program(housed(graph, host_resident), movable=movable), host_resident)

    def redraft(self, graph: Graph, hosted: Collection[int], movable: Collection[int]) -> OffloadCandidate:
        """The same for a graph that has these host-resident values already."""
        return OffloadCandidate(stage_program(graph, movable=movable), tuple(hosted))

    def search(self, candidate: OffloadCandidate, work: int) -> Search:
        """A search for retentions of a candidate, within the limits of this solve."""
        problem = replace(self.problem, graph=candidate.program.graph, work=max(0, work), start=None)
        return Search(problem, candidate.program, deadline=self.clock.deadline, watch=self.tell)

    def settle(self, candidate: OffloadCandidate, retention: GapNumbers) -> Retention | None:
        """A retention that fits, by a few drops if need be; None if it does not come to that."""
        search = self.search(candidate, 0)
        state = candidate.program.keep_all(search.budget_B)
        if not state.assign(retention):
            return None
        fits = mend(search, state, _DROPS)
        self.work += search.work
        if fits:
            return self._lighter(candidate, state)
        self._note(candidate, state)
        return None

    def consider(self, candidate: OffloadCandidate, state: Retention) -> Timing | None:
        """Times a retention exactly, and takes it if it is the best plan; None if it does not fit after all."""
        if not state.fits:
            return None
        schedule = candidate.program.lift(state, waits=False)
        timed = timing(
            candidate.program.graph, schedule, self.machine, self.problem.budget_B, self.problem.host_budget_B
        )
        self.stats["timings"] = self.stats.get("timings", 0) + 1
        if not self._fits(timed):
            return None
        if self.best is None or timed.time_s < self.best.timing.time_s * (1.0 - _EQUAL):
            self.best = Found(timed, candidate.hosted, candidate, state.taus, self.clock.stage)
        return timed

    def estimate_s(self, candidate: OffloadCandidate, state: Retention) -> float:
        """About how long a retention will take."""
        schedule, problem = candidate.program.lift(state, waits=False), self.problem
        return estimated_s(candidate.program.graph, schedule, self.machine, problem.budget_B, problem.host_budget_B)

    def offer_plain(self, schedule: Schedule) -> None:
        """Takes a plan that offloads nothing."""
        timed = measured(self.graph, with_waits(self.graph, schedule.steps), self.machine)
        if self._fits(timed) and (self.best is None or timed.time_s < self.best.timing.time_s):
            self.best = Found(dataclasses.replace(timed, schedule=schedule), (), None, None, self.clock.stage)

    def offer(self, schedule: Schedule, hosted: tuple[int, ...]) -> None:
        """Takes a plan that another search found, if it is the best."""
        timed = measured(housed(self.graph, hosted), schedule, self.machine)
        if self._fits(timed) and (self.best is None or timed.time_s < self.best.timing.time_s * (1.0 - _EQUAL)):
            self.best = Found(dataclasses.replace(timed, schedule=schedule), hosted, None, None, self.clock.stage)

    def _fits(self, timed: Timing) -> bool:
        host_B = self.problem.host_budget_B
        return timed.peak_B <= self.problem.budget_B and (host_B is None or timed.host_peak_B <= host_B)

    def _note(self, candidate: OffloadCandidate, state: Retention) -> None:
        """Remembers the plan that needs the fewest bytes."""
        if self.lowest_B is not None and state.peak_B + candidate.program.reserve_B >= self.lowest_B:
            return
        schedule = candidate.program.lift(state)
        timed = measured(candidate.program.graph, schedule, self.machine)
        host_B = self.problem.host_budget_B
        if host_B is None or timed.host_peak_B <= host_B:
            self.lowest_B = state.peak_B + candidate.program.reserve_B
            self.lowest = (schedule, candidate.hosted)

    def note(self, schedule: Schedule, hosted: tuple[int, ...], graph: Graph) -> bool:
        """Remembers a plan if none needs fewer bytes and it fits on the host; whether that is so.

        Arguments:
            graph: with its host-resident values.
        """
        timed, host_B = measured(graph, schedule, self.machine), self.problem.host_budget_B
        lowest = self.lowest_B is None or timed.peak_B < self.lowest_B
        if lowest and (host_B is None or timed.host_peak_B <= host_B):
            self.lowest_B, self.lowest = timed.peak_B, (schedule, hosted)
            return True
        return False

    def _lighter(self, candidate: OffloadCandidate, state: Retention) -> Retention | None:
        """The same with fewer copies where they do not all fit on the host."""
        limit_B = self.problem.host_budget_B
        if limit_B is None:
            return state
        program = candidate.program
        for _ in range(_LIGHTER):
            timed = measured(program.graph, program.lift(state), self.machine)
            if timed.host_peak_B <= limit_B:
                return state
            retention = _without_copies(program, state.taus, timed.host_peak_B - limit_B)
            search = self.search(candidate, 0)
            state = program.keep_all(search.budget_B)
            if retention is None or not state.assign(retention) or not mend(search, state, _DROPS):
                return None
            self.work += search.work
        return None


def _without_copies(program: StageProgram, retention: GapNumbers, spare_B: int) -> GapNumbers | None:
    """Recomputes or keeps the values of the largest copies until so many bytes are spared; None if none are left."""
    core, found, left_B = program.core, retention.copy(), spare_B
    gaps: dict[int, list[int]] = {}
    gap = 0
    for v, uses in enumerate(program.uses):
        for g in range(gap, gap + len(uses) + 1):
            if found[g] < -1 and program.values[v] not in program.movement.hosted:
                gaps.setdefault(v, []).append(g)
        gap += len(uses) + 1
    if not gaps:
        return None
    for v in sorted(gaps, key=lambda v: (-program.size_B[v], v)):
        if left_B <= 0:
            break
        left_B -= program.size_B[v]
        for g in gaps[v]:
            found[g] = ~found[g] if core.can_recompute(g) else -1
    return found
