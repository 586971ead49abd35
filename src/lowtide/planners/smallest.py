"""The smallest budget for which a plan is found."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from lowtide.errors import PlanError
from lowtide.ir.plan import Problem
from lowtide.planners.annealing import anneal_once
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.chain.chain_start import chain_start
from lowtide.planners.greedy import descend
from lowtide.planners.implementations.candidates import all_candidates
from lowtide.planners.implementations.choice import choose, fixes_choices
from lowtide.planners.implementations.dominance import thrifty
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import GapNumbers, refuses_stages
from lowtide.planners.search import Search

ROUNDS = 5
WORK = 60_000
_LINKS, _SLOTS = (100,), 200  # of the chain: how low it comes hardly depends on them
_HOT = 3.0  # first temperature, in mean run times of a recipe


@dataclass(frozen=True)
class Smallest:
    """A budget, and the retention that meets it (bytes for generator states included)."""

    budget_B: int
    retention: GapNumbers


def smallest_budget(problem: Problem, work: int = WORK) -> int | None:
    """Looks for the smallest budget that some plan meets, between the proved floor and keep-all.

    What is returned is the exact peak of a plan that was really found; a smaller one may exist. The portfolio
    finds a plan at every budget from there on.

    Arguments:
        problem: its budget and limits are ignored.
        work: proposals in all.

    Returns: bytes; None if the problem is refused.
    """
    if refuses_stages(problem.graph):
        return None
    graph = base_order(problem.graph)
    choices: tuple[dict[int, int], ...] = ({},)
    if fixes_choices(graph):
        choices = ({}, thrifty(all_candidates(graph)))
    return min(smallest(replace(problem, graph=choose(graph, c)), work).budget_B for c in choices)


def smallest(problem: Problem, work: int = WORK) -> Smallest:
    """Greedy descent and the chain as far as they go, then annealing towards budgets found by bisection.

    Arguments: as for `smallest_budget`.

    Raises:
        PlanError: if the problem is refused.
    """
    if reason := refuses_stages(problem.graph):
        raise PlanError(reason)
    search = Search(replace(problem, budget_B=0, work=work, time_limit_s=None))
    reserve_B = search.program.reserve_B
    low_B = search.budget_B = op_floor(search.program).floor_B
    everything = search.program.keep_all(0)
    best = Smallest(everything.peak_B + search.program.hidden_B, everything.taus)
    descend(search)
    if search.lowest_retention is not None and search.stats["greedy_peak_B"] + reserve_B < best.budget_B:
        best = Smallest(search.stats["greedy_peak_B"] + reserve_B, search.lowest_retention)
    lowest = chain_start(search, _LINKS, _SLOTS)
    if lowest is not None and lowest.peak_B + reserve_B < best.budget_B:
        best = Smallest(lowest.peak_B + reserve_B, lowest.taus)
    for number in range(ROUNDS):
        share = (work - search.work) // (ROUNDS - number)
        if share <= 0 or best.budget_B - low_B <= 0.005 * best.budget_B:
            break
        target_B = (low_B + best.budget_B) // 2
        search.budget_B = target_B - reserve_B
        state = search.program.keep_all(search.budget_B)
        if not state.assign(best.retention):
            raise AssertionError("a retention that was possible stays possible")
        annealer = anneal_once(search, state, _HOT, share, problem.seed + number, enough_ps=2**62)
        if not annealer.found:
            low_B = target_B
        reached = Smallest(annealer.lowest_peak_B + reserve_B, annealer.lowest_taus)
        if reached.budget_B < best.budget_B:
            best = reached
    return best
