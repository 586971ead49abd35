"""The default planner: cheap proofs first, then better and better plans until one is close to the bound.

An order of first runs -> keep-all -> floor -> greedy -> single cut and replay -> chain -> several cuts, concurrent with
a first annealing run -> annealing runs, two at a time, from what all of these found. It stops at a gap of half a
percent, at the limits of work and time, or when round after round of annealing runs brings nothing more. Given a
schedule to begin from, it has that one before any limit can strike. Where values can be offloaded to the host,
`pool.py` goes on from what offloads nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Retention
from lowtide.ir.plan import DEFAULT_WORK, Outcome, Problem
from lowtide.planners.annealing import AnnealingRun, Lane, anneal_lanes
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.chain_start import chain_start
from lowtide.planners.clock import OutOfTime, worth_s
from lowtide.planners.concurrent import Concurrent
from lowtide.planners.cuts import CutLimits, CutsFound, cut_and_replay, find_cuts, take
from lowtide.planners.greedy import descend
from lowtide.planners.implementations.joint import has_choices, plan_jointly
from lowtide.planners.implementations.joint_search import Deep
from lowtide.planners.keep_all import find_floor, keep_all
from lowtide.planners.offload.pool import plan_offload
from lowtide.planners.reductions.stages import GapNumbers, refuses_stages
from lowtide.planners.reductions.twins import twin_gaps
from lowtide.planners.search import Search, conduct
from lowtide.planners.smallest import Smallest, smallest
from lowtide.planners.start import begin

_PLAIN = AnnealingRun(0.5)
_MIRROR = AnnealingRun(0.5, mirrored=True)
_WARM = AnnealingRun(1.5)
_WINDOW = AnnealingRun(0.5, windowed=True, mirrored=True)
_WINDOWS = (_WINDOW, _WINDOW, AnnealingRun(3.0, windowed=True), _WINDOW)
_PER_STAGE = 20_000  # proposals at most
_PER_s = 400_000  # proposals that a core tries in a second, roughly
_CUTS_s = 60.0  # of worth: for less, several cuts are not followed to their limits
_WORTH = 5e-4  # a round of annealing runs that brings less, as a fraction of the step, was idle


@final
@dataclass(frozen=True)
class Portfolio(AbstractPlanner):
    """All planners in turn, sharing one incumbent and one bound.

    Arguments:
        rounds: of the single cut with smaller budgets.
        annealing_rounds: of two lanes, over which the work is spread.
    """

    rounds: int = 1
    annealing_rounds: int = 4
    name: ClassVar[str] = "portfolio"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph, offload=problem.can_move)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """Plans; see the module. Without a plan the outcome names floor and smallest budget found."""
        refusal = self.refuses(problem)
        if refusal is None and problem.can_move:
            return plan_offload(problem, watch, self.name, self.solve)
        if refusal is None and has_choices(problem.graph):
            return plan_jointly(problem, watch, self.name, Deep(self._thoroughly, self._anneal, find_smallest))
        return conduct(problem, watch, self.name, refusal, self._script, any_order=True)

    def _script(self, search: Search) -> None:
        if search.problem.start is not None:
            begin(search, search.problem.start)
        search.run("keep_all", keep_all)
        if search.problem.start is None:
            search.run("floor", find_floor)  # also where everything fits: a plan always names its floor
        if search.clock.is_close():
            return
        if search.proved_impossible:
            search.run("smallest", find_smallest)
        else:
            self._plan(search)

    def _plan(self, search: Search) -> None:
        starts: list[GapNumbers] = []
        search.run("greedy", descend)
        search.run("single_cut", lambda s: _note(starts, cut_and_replay(s, self.rounds)))
        self._thoroughly(search, starts)

    def _thoroughly(self, search: Search, starts: list[GapNumbers] | None = None) -> None:
        """What takes longer, where the quick part did not come close to the bound."""
        starts = [] if starts is None else starts
        if search.clock.is_close():
            return
        search.run("chain", lambda s: _note(starts, chain_start(s)))
        if search.clock.is_close():
            return
        twins = twin_gaps(search.program)
        if search.retention is not None and not _work(search):
            return
        search.run("multi_cut", lambda s: self._cut_concurrently(s, starts, twins))
        if search.retention is not None or not search.proved_impossible:
            search.run("annealing", lambda s: self._anneal_rounds(s, starts, twins))
        if search.retention is None:
            search.run("smallest", find_smallest)

    def _anneal(self, search: Search) -> None:
        """Annealing runs from the incumbent."""
        twins = twin_gaps(search.program)
        search.run("annealing", lambda s: self._anneal_rounds(s, [], twins))

    def _cut_concurrently(self, search: Search, starts: list[GapNumbers], twins: GapNumbers) -> None:
        """Several cuts in one thread, annealing runs in this one."""
        program, budget_B, free_B = search.program, search.problem.budget_B, search.budget_B
        limits = _limits(search)

        def cuts(stop: threading.Event) -> CutsFound:
            return find_cuts(program, budget_B, free_B, limits(stop))

        with Concurrent(cuts) as concurrent:
            try:
                lane = Lane(_first(search, starts), (_PLAIN, _WINDOW), _seed(search, 0))
                anneal_lanes(search, [lane], _work(search) // (2 * self.annealing_rounds + 1), twins)
                starts[:0] = take(search, concurrent.result(search.clock.tick))[:2]
            except OutOfTime:  # what the cuts have proved by now holds
                if (found := concurrent.stopped()) is not None:
                    take(search, found)
                raise

    def _anneal_rounds(self, search: Search, starts: list[GapNumbers], twins: GapNumbers) -> None:
        """Rounds of two lanes: windows from the incumbent; everything at once, from it or from what else there is."""
        idle = 0
        for number in range(self.annealing_rounds):
            work = _work(search) // (self.annealing_rounds - number)
            if work < 2 or search.clock.is_close() or idle == 2:
                return
            before_ps = search.time_ps
            best = _first(search, starts)
            other = starts[number % len(starts)] if starts and number % 2 == 0 else best
            plain = (_PLAIN, _MIRROR, _WARM, _PLAIN)[number % 4]
            lanes = (
                Lane(best, _WINDOWS, _seed(search, 2 * number + 1)),
                Lane(other, (plain,), _seed(search, 2 * number + 2)),
            )
            anneal_lanes(search, lanes, work, twins)
            gained_ps = 0 if before_ps is None or search.time_ps is None else before_ps - search.time_ps
            worth = before_ps is None or gained_ps > _WORTH * before_ps
            idle = 0 if worth else idle + 1


def _work(search: Search) -> int:
    """What is left of the work; a small graph is searched through with less, and so is a short step."""
    work = min(search.problem.work, _PER_STAGE * len(search.program.stages))
    if search.time_ps is not None:
        work = min(work, int(worth_s(search.time_ps, search.clock.bound_ps, search.problem.work) * _PER_s))
    return max(0, work - search.work)


def _note(starts: list[GapNumbers], state: Retention | None) -> None:
    if state is not None:
        starts.append(state.taus)


def _first(search: Search, starts: list[GapNumbers]) -> GapNumbers:
    """Where an annealing run begins: at the incumbent, at what was found instead, at keep-all."""
    if search.retention is not None:
        return search.retention
    return starts[0] if starts else search.program.keep_all(0).taus


def _seed(search: Search, number: int) -> int:
    return search.problem.seed * 1000 + number


def _limits(search: Search) -> Callable[[threading.Event], CutLimits]:
    """How far to go with cuts: as far as the work allows, compared with the default, and as can pay for itself."""
    effort = min(4.0, search.problem.work / DEFAULT_WORK)
    if search.time_ps is not None:
        effort = min(effort, worth_s(search.time_ps, search.clock.bound_ps, search.problem.work) / _CUTS_s)

    def limits(stop: threading.Event) -> CutLimits:
        return CutLimits(
            columns=int(CutLimits.columns * effort),
            nodes=max(1, int(CutLimits.nodes * effort)),
            deadline=search.clock.deadline,
            stop=stop,
        )

    return limits


def find_smallest(search: Search) -> Smallest:
    """Notes the smallest budget that some plan meets; if it is within the budget after all, offers that plan."""
    found = smallest(search.problem)
    search.smallest_B, search.smallest_retention = found.budget_B, found.retention
    if found.budget_B <= search.problem.budget_B:
        keep_all(search)  # which needs no bytes for states of the generator
        state = search.program.keep_all(search.budget_B)
        if state.assign(found.retention):
            search.offer(state)
    return found


def portfolio(problem: Problem, watch: Watch | None = None) -> Outcome:
    """Plans with the default portfolio.

    Arguments:
        problem: any that it does not refuse.
        watch: called with the progress.

    Returns: the outcome of `Portfolio().solve`.

    Raises:
        PlanError: if the problem is refused.
        KeyboardInterrupt: on Ctrl-C before there is a plan.
    """
    return Portfolio().solve(problem, watch)
