"""The planner that people get: cheap proofs first, then better and better plans until one is close to the bound.

Floor -> keep-all -> greedy -> single cut and replay -> annealing. It stops at a gap of half a percent, or at the
limits of work and time. Given a schedule to begin from, it has that one before any limit can strike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Retention
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.greedy import descend
from lowtide.planners.keep_all import find_floor, keep_all
from lowtide.planners.local_search import anneal
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import GAP, Search, conduct
from lowtide.planners.single_cut import cut_and_replay
from lowtide.planners.smallest import Smallest, smallest
from lowtide.planners.start import begin


@final
@dataclass(frozen=True)
class Portfolio(AbstractPlanner):
    """All planners in turn, sharing one incumbent and one bound.

    Arguments:
        rounds: of the single cut with smaller budgets.
        temperatures: of the annealing's starts; the first begins where the lowest cut's replay ended.
        hot_temperatures: the same, when there is no plan yet.
    """

    rounds: int = 1
    temperatures: tuple[float, ...] = (0.5, 0.5, 5.0)
    hot_temperatures: tuple[float, ...] = (0.5, 5.0, 10.0)
    name: ClassVar[str] = "portfolio"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """Plans; see the module. Without a plan the outcome names floor and smallest budget found."""
        return conduct(problem, watch, self.name, self.refuses(problem), self._script)

    def _script(self, search: Search) -> None:
        if search.problem.start is not None:
            begin(search, search.problem.start)
        search.run("keep_all", keep_all)
        if search.problem.start is None:
            search.run("floor", find_floor)  # also where everything fits: a plan always names its floor
        if search.gap <= GAP:
            return
        if search.proved_impossible:
            search.run("smallest", find_smallest)
        else:
            self._plan(search)

    def _plan(self, search: Search) -> None:
        search.run("greedy", descend)
        replays: list[Retention | None] = []
        lowest: list[Smallest] = []
        search.run("single_cut", lambda s: replays.append(cut_and_replay(s, self.rounds)))
        if search.gap <= GAP:
            return
        starts = [state.taus for state in replays if state is not None]
        if search.taus is None:
            # A tight budget: know first how far down plans reach, and begin there too.
            search.run("smallest", lambda s: lowest.append(find_smallest(s)))
            starts += [] if search.taus is not None else [lowest[0].taus]
        temperatures = self.hot_temperatures if search.taus is None else self.temperatures
        search.run("annealing", lambda s: anneal(s, temperatures, starts))


def find_smallest(search: Search) -> Smallest:
    """Notes the smallest budget that some plan meets; if it is within the budget after all, offers that plan."""
    found = smallest(search.problem)
    search.smallest_B = found.budget_B
    if found.budget_B <= search.problem.budget_B:
        state = search.program.keep_all(search.budget_B)
        if state.assign(found.taus):
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
