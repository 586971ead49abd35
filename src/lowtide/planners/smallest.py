"""The smallest budget for which a plan is found."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.errors import PlanError
from lowtide.ir.plan import Problem
from lowtide.planners.bounds.op_floor import op_floor
from lowtide.planners.greedy import descend
from lowtide.planners.keep_all import keep_all
from lowtide.planners.local_search import anneal_once
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import OutOfTime, Search

ROUNDS = 5
_HOT = 3.0  # first temperature, in mean run times of a recipe


def smallest_budget(problem: Problem, work: int = 60_000) -> int | None:
    """Looks for the smallest budget that some plan meets, between the proved floor and keep-all.

    Greedy descent as far as it goes, then annealing towards budgets found by bisection. What is returned is the
    exact peak of a plan that was really found; a smaller one may exist.

    Arguments:
        problem: its budget is ignored.
        work: proposals in all.

    Returns: bytes; None only if the problem's time limit struck before anything was known.

    Raises:
        PlanError: if the graph has no stage program.
    """
    if reason := refuses_stages(problem.graph):
        raise PlanError(reason)
    try:
        return _descend(problem, work)
    except OutOfTime:
        return None


def _descend(problem: Problem, work: int) -> int:
    search = Search(replace(problem, budget_B=0, work=work))
    floor_B = op_floor(search.program).floor_B
    keep_all(search)
    smallest_B = int(search.stats["keep_all_peak_B"])
    reserve_B = search.program.reserve_B
    search.budget_B = floor_B
    descend(search)
    smallest_B = min(smallest_B, int(search.stats["greedy_peak_B"]) + reserve_B)
    low_B = floor_B
    taus = search.lowest_taus
    for number in range(ROUNDS):
        share = (work - search.work) // (ROUNDS - number)
        if share <= 0 or smallest_B - low_B <= 0.005 * smallest_B:
            break
        target_B = (low_B + smallest_B) // 2
        search.budget_B = target_B - reserve_B
        state = search.program.keep_all(search.budget_B)
        if taus is not None and not state.assign(taus):
            raise AssertionError("taus that were possible stay possible")
        annealer = anneal_once(search, state, _HOT, share, problem.seed + number, enough_ps=2**62)
        reached_B = target_B if annealer.found else annealer.lowest_peak_B + reserve_B
        if reached_B < smallest_B:
            smallest_B, taus = reached_B, annealer.best_taus if annealer.found else annealer.lowest_taus
        if not annealer.found:
            low_B = target_B
    return smallest_B
