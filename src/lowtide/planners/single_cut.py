"""The single-cut bound as a planner: keep its set across the cut, bring the rest back lazily, just in time.

The replayed plan may exceed the budget at another stage; then the cut is solved again for a smaller budget, found
by bisection on the replayed plan's exact peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Retention
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.bounds.single_cut import CutSolution, SingleCut
from lowtide.planners.keep_all import find_floor, keep_all
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import GAP, Search, conduct


@final
@dataclass(frozen=True)
class SingleCutReplay(AbstractPlanner):
    """Solves the cut at the peak of keep-all and replays it.

    Arguments:
        rounds: solves with smaller budgets, if the first replay does not fit.
    """

    rounds: int = 6
    name: ClassVar[str] = "single-cut"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """OPTIMAL when the replay costs what the bound says, else FEASIBLE or UNSOLVED."""

        def script(search: Search) -> None:
            search.run("keep_all", keep_all)
            if search.taus is None:
                search.run("floor", find_floor)
            if search.taus is None and not search.proved_impossible:
                search.run("single_cut", lambda s: cut_and_replay(s, self.rounds))

        return conduct(problem, watch, self.name, self.refuses(problem), script)


def replay(search: Search, cut: SingleCut, kept: frozenset[int]) -> Retention:
    """The retention that drops what is not kept across the cut, and keeps it again once it is back. O(change)."""
    core = search.program.core
    taus = search.program.keep_all(0).taus
    for v in cut.values:
        if v in kept:
            continue
        gap = core.gap_at(v, cut.stage)
        if core.is_free(gap):
            taus[gap] = core.gap_start(gap) + 1
    state = search.program.keep_all(search.budget_B)
    if not state.assign(taus):
        state = search.program.keep_all(search.budget_B)
    return state


def cut_and_replay(search: Search, rounds: int = 6) -> Retention | None:
    """Proves the bound at keep-all's peak, and offers replays for shrinking budgets.

    Returns: the replay with the lowest peak, to start a search from; None if there is none.
    """
    cut = SingleCut(search.program, search.program.keep_all(0).peak_stage)
    solution = solve_cut(search, cut, search.problem.budget_B)
    search.prove(search.program.time_ps + solution.bound_ps)
    search.stats["bound_overhead"] = solution.bound_ps / max(1, search.program.time_ps)
    if solution.kept is None:
        return None
    lowest = replay(search, cut, solution.kept)
    search.stats["replay_peaks_B"] = [lowest.peak_B]
    if search.offer(lowest) or search.gap <= GAP:
        return lowest
    high_B, low_B = search.budget_B, max(0, 2 * search.budget_B - lowest.peak_B)
    for number in range(rounds):
        # First the straight guess (shrink by what it was over), then bisection.
        trial_B = low_B if number == 0 else (low_B + high_B) // 2
        solution = solve_cut(search, cut, trial_B)
        search.tick()
        if solution.kept is None:
            low_B = trial_B
            continue
        state = replay(search, cut, solution.kept)
        search.stats["replay_peaks_B"].append(state.peak_B)
        search.offer(state)
        if search.gap <= GAP:
            return state
        if state.fits:
            low_B = trial_B
        else:
            high_B = trial_B
            low_B = min(low_B, max(0, 2 * low_B - high_B)) if number == 0 else low_B
        if state.peak_B < lowest.peak_B:
            lowest = state
    return lowest


def solve_cut(search: Search, cut: SingleCut, budget_B: int, nodes: int = 200) -> CutSolution:
    """Solves a cut within the limits of the search, and counts."""
    solution = cut.solve(budget_B, nodes=nodes, limit_s=search.left_s)
    search.stats["ilp_solves"] = search.stats.get("ilp_solves", 0) + 1
    search.stats["ilp_nodes"] = search.stats.get("ilp_nodes", 0) + solution.nodes
    return solution


