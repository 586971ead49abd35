"""The single-cut bound as a planner: keep its set across the cut, rematerialise the rest lazily, just in time.

The replayed plan may exceed the budget at another stage; then the cut is solved again for a smaller budget, found
by bisection on the replayed plan's exact peak.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Retention
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.bounds.single_cut import CutSolution, SingleCut
from lowtide.planners.chain.ladder import ladder
from lowtide.planners.greedy import mend
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import GAP, Search, conduct

_CLOSE = 1e-3  # as a fraction of the step: closer solutions of a cut cost more than they bring
_FAR = 1.05  # times the budget: a replay that takes more is not mended but solved anew, with rungs
_CLIMBS = 4  # solves with rungs
_BRIEFLY = 2  # solves with smaller budgets in a search for little work
_NODES = 5  # more of the tree takes most of the planning time and moves the plan by a tenth of a percent


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
        script = beyond_keep_all(("single_cut", lambda s: cut_and_replay(s, self.rounds)))
        return conduct(problem, watch, self.name, self.refuses(problem), script)


def replay(search: Search, cut: SingleCut, kept: frozenset[int]) -> Retention:
    """The retention that drops what is not kept across the cut, and keeps it once rematerialised. O(change)."""
    core = search.program.core
    taus = search.program.keep_all(0).taus
    for v in (*cut.cut.values, *cut.cut.absent):
        if v in kept:
            continue
        gap = cut.cut.gap(v)
        if core.is_free(gap):
            taus[gap] = core.gap_start(gap) + 1
    state = search.program.keep_all(search.budget_B)
    if not state.assign(taus):
        state = search.program.keep_all(search.budget_B)
    return state


def cut_and_replay(search: Search, rounds: int = 6, cuts: int = 2, *, climb: bool = True) -> Retention | None:
    """Proves the bound at keep-all's peak and at the peaks of its replays, and offers replays.

    A replay that does not fit says where the next cut belongs: at its own peak. When that leads nowhere new, the
    cut with the lowest peak is solved for smaller budgets.

    Arguments:
        rounds: solves with smaller budgets.
        cuts: different stages at which to cut.
        climb: whether a replay that is far too full is tried with rungs.

    Returns: the replay with the lowest peak, to start a search from; None if there is none.
    """
    if search.is_brief:
        rounds, cuts, climb = min(rounds, _BRIEFLY), 1, False
    stage = search.program.keep_all(0).peak_stage
    lowest: Retention | None = None
    lowest_cut: SingleCut | None = None
    seen: set[int] = set()
    while stage not in seen and len(seen) < cuts:
        seen.add(stage)
        cut = SingleCut(search.program, stage)
        state = _try(search, cut, search.problem.budget_B, proves=True)
        if state is None:
            break
        if lowest is None or state.peak_B < lowest.peak_B:
            lowest, lowest_cut = state, cut
        if search.gap <= GAP:
            return lowest
        stage = state.peak_stage
    if lowest is None or lowest_cut is None:
        return None
    if climb and lowest.peak_B > _FAR * search.budget_B:
        lowest = _climb(search, lowest_cut, lowest)
    return _shrink(search, lowest_cut, lowest, rounds)


def _climb(search: Search, cut: SingleCut, lowest: Retention) -> Retention:
    """Solves a cut with rungs, so that less has to be rematerialised at once."""
    rungs = ladder(cut.cut, lowest.peak_B - search.budget_B)
    if rungs is None:
        return lowest
    trial_B = search.problem.budget_B
    for _ in range(_CLIMBS):
        state = _try(search, cut, trial_B, keep=rungs.rungs)
        if state is None or search.gap <= GAP:
            break
        lowest = min(lowest, state, key=lambda s: s.peak_B)
        if state.fits:
            break
        trial_B -= max(1, min(rungs.between_B, state.peak_B - search.budget_B))
    return lowest


def _shrink(search: Search, cut: SingleCut, lowest: Retention, rounds: int) -> Retention:
    """Solves one cut for smaller budgets until its replay fits: first shrunk by what it was over, then bisection."""
    fits_B: int | None = None
    over_B = search.problem.budget_B
    trial_B = over_B - max(1, lowest.peak_B - search.budget_B)
    for _ in range(rounds):
        if search.gap <= GAP:
            break
        state = _try(search, cut, trial_B)
        if state is not None and state.peak_B < lowest.peak_B:
            lowest = state
        if state is None or state.fits:
            fits_B = trial_B
        else:
            over_B = trial_B
        trial_B = over_B - (lowest.peak_B - search.budget_B) if fits_B is None else (fits_B + over_B) // 2
    return lowest


def _try(
    search: Search, cut: SingleCut, budget_B: int, proves: bool = False, keep: Collection[int] = ()
) -> Retention | None:
    """Solves one cut for one budget, notes what it proves, and offers its replay; None if no set fits."""
    solution = solve_cut(search, cut, budget_B, keep=keep)
    if proves:
        search.prove(search.program.time_ps + solution.bound_ps)
    state = None if solution.kept is None else replay(search, cut, solution.kept)
    if state is not None:
        search.stats.setdefault("replay_peaks_B", []).append(state.peak_B)
        search.offer(state)
        _mend(search, state)
    search.tick()
    return state


def _mend(search: Search, state: Retention) -> None:
    """Lets a copy of a replay that is not far above the budget go down to it."""
    if state.fits or state.peak_B > _FAR * search.budget_B:
        return
    copy = search.program.keep_all(search.budget_B)
    if copy.assign(state.taus):
        mend(search, copy)


def solve_cut(
    search: Search, cut: SingleCut, budget_B: int, nodes: int = _NODES, keep: Collection[int] = ()
) -> CutSolution:
    """Solves a cut within the limits of the search, once, and counts."""
    key = (cut.stage, budget_B, nodes, frozenset(keep))
    if key in search.cuts_solved:
        return search.cuts_solved[key]
    close_ps = int(_CLOSE * search.program.time_ps)
    solution = cut.solve(budget_B, keep=keep, close_ps=close_ps, nodes=nodes, limit_s=search.left_s)
    search.cuts_solved[key] = solution
    search.stats["ilp_solves"] = search.stats.get("ilp_solves", 0) + 1
    search.stats["ilp_nodes"] = search.stats.get("ilp_nodes", 0) + solution.nodes
    return solution
