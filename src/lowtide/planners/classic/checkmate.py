"""Checkmate: the optimum of its class of schedules by an integer programme, and rounding off its relaxation.

P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020. The model is in
`bounds/checkmate.py`. As there, the cheapest baseline that fits is where the search begins, and what is recomputed is
worked out anew from what is kept.

Two-phase rounding (section 5): what is kept is rounded off the relaxation, what is recomputed follows from it. The
relaxation is solved for nine tenths of the budget. Rounded by a threshold, of which nine are tried, or at random, each
value as likely to be kept as the relaxation holds of it; of what fits the fastest is taken.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Problem
from lowtide.planners.bounds.checkmate import CheckmateModel
from lowtide.planners.classic.chen import sweep
from lowtide.planners.classic.policy import AbstractPolicyPlanner, note_peak
from lowtide.planners.reductions.residence import RESIDENCE_CLASS, Residence, of_lifetimes, residence
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search

MOST_RECIPES = 300  # the model then has some 200,000 columns, and rarely a plan within minutes
_WORK_PER_NODE = 20


@final
@dataclass(frozen=True)
class Checkmate(AbstractPolicyPlanner):
    """The integer programme. Exponential; O(recipes * reads) columns.

    Arguments:
        most_recipes: of a program; larger ones are declined.
        rounds: solves with a smaller budget, if what the solver found exceeds the budget by its tolerances.
    """

    most_recipes: int = MOST_RECIPES
    rounds: int = 3
    name: ClassVar[str] = "checkmate"

    def refuses(self, problem: Problem) -> str | None:
        """Graphs that have no stage program, and those with too many recipes."""
        return refuses_stages(problem.graph) or refuses_size(problem, self.most_recipes)

    def attempts(self, search: Search) -> None:
        """OPTIMAL in its class when the tree was exhausted, else FEASIBLE, UNSOLVED or INFEASIBLE.

        A solver that says that nothing of its class fits leaves UNSOLVED: another class may hold a plan.
        """
        sweep(search, linear=True)
        sweep(search, linear=False)
        start = None
        if search.retention is not None:
            start = residence(search.program, of_lifetimes(search.program, search.state()))
            # In program order the recomputations of a stage may take more than just in time.
            start = start if start is not None and offer(search, start) <= search.problem.budget_B else None
        budget_B = search.problem.budget_B
        for number in range(self.rounds):
            model = CheckmateModel(search.program, budget_B)
            nodes = max(1, (search.problem.work - search.work) // _WORK_PER_NODE)
            solution = model.solve(nodes=nodes, limit_s=search.clock.left_s, start=start)
            search.work += solution.nodes * _WORK_PER_NODE
            search.stats["ilp_nodes"] = search.stats.get("ilp_nodes", 0) + solution.nodes
            search.stats |= {"columns": model.milp.columns, "none_in_class": solution.impossible}
            if number == 0:
                prove(search, solution.bound_ps)
            if solution.there is None:
                break
            plan = residence(search.program, [{v for v, x in row.items() if x > 0.5} for row in solution.there])
            over_B = 0 if plan is None else offer(search, plan) - search.problem.budget_B
            if over_B <= 0:
                break
            budget_B, start = budget_B - over_B, None
        search.clock.tick()


def refuses_size(problem: Problem, most: int) -> str | None:
    """Says that a program has too many recipes, or None if it has not."""
    count = len(problem.graph.program)
    return f"the program has {count} recipes; this planner declines above {most}" if count > most else None


def offer(search: Search, plan: Residence) -> int:
    """Offers a plan of the class and notes its peak.

    Returns: its peak in bytes.
    """
    peak_B = search.offer_schedule(search.program.lift(plan), plan.time_ps)
    note_peak(search, peak_B)
    return peak_B


def prove(search: Search, recomputations_ps: float) -> None:
    """Notes a bound on the recomputations that holds for the class, and that the bound is now for it."""
    search.clock.prove(search.program.time_ps + recomputations_ps)
    search.bound_class = RESIDENCE_CLASS


_SHARE = 0.9  # of the budget: rounding makes plans larger
_THRESHOLDS = tuple(k / 10 for k in range(1, 10))

There = tuple[dict[int, float], ...]


@final
@dataclass(frozen=True)
class LpRounding(AbstractPolicyPlanner):
    """Rounds by thresholds. One linear programme of O(recipes * reads) columns.

    Arguments:
        most_recipes: of a program; larger ones are declined.
    """

    most_recipes: int = MOST_RECIPES
    name: ClassVar[str] = "lp-rounding"

    def refuses(self, problem: Problem) -> str | None:
        """Graphs that have no stage program, and those with too many recipes."""
        return refuses_stages(problem.graph) or refuses_size(problem, self.most_recipes)

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the fastest plan that fits, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        there = _relax(search)
        _try(search, ([{v for v, x in row.items() if x > level} for row in there] for level in _THRESHOLDS))


@final
@dataclass(frozen=True)
class RandomRounding(AbstractPolicyPlanner):
    """Rounds at random, by the problem's seed. One linear programme of O(recipes * reads) columns.

    Arguments:
        samples: of which the best is taken.
        most_recipes: of a program; larger ones are declined.
    """

    samples: int = 100
    most_recipes: int = MOST_RECIPES
    name: ClassVar[str] = "lp-rounding-random"

    def refuses(self, problem: Problem) -> str | None:
        """Graphs that have no stage program, and those with too many recipes."""
        return refuses_stages(problem.graph) or refuses_size(problem, self.most_recipes)

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the fastest plan that fits, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        there = _relax(search)
        dice = random.Random(search.problem.seed)
        draws = ([{v for v, x in row.items() if dice.random() < x} for row in there] for _ in range(self.samples))
        _try(search, draws)


def _relax(search: Search) -> There:
    """Solves the relaxation for less than the budget; where that is impossible, for the budget."""
    for share in (_SHARE, 1.0):
        budget_B = int(search.problem.budget_B * share)
        solution = CheckmateModel(search.program, budget_B).relax(search.clock.left_s)
        search.clock.tick()
        if solution.there is not None:
            search.stats["relaxed_ps"] = solution.bound_ps
            if share == 1.0:
                prove(search, solution.bound_ps)
            return solution.there
    search.stats["none_in_class"] = solution.impossible
    return ()


def _try(search: Search, choices: Iterable[list[set[int]]]) -> None:
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for kept in choices:
        if not kept or search.work >= search.problem.work:
            return
        search.work += 1
        plan = residence(search.program, kept)
        if plan is not None and plan.recompute_lists not in seen:
            seen.add(plan.recompute_lists)
            offer(search, plan)
        search.clock.tick()
