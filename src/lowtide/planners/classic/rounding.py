"""Checkmate's two-phase rounding: what is kept is rounded off the relaxation, what is recomputed follows from it.

P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020, section 5. The
relaxation is solved for nine tenths of the budget. Rounded by a threshold, of which nine are tried, or at random, each
value as likely to be kept as the relaxation holds of it; of what fits the fastest is taken.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.bounds.checkmate import CheckmateModel
from lowtide.planners.classic.checkmate import offer, prove, refuses_size
from lowtide.planners.classic.policy import follow
from lowtide.planners.reductions.residence import residence
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search

MOST_RECIPES = 300  # the relaxation then has some 200,000 columns, and takes minutes
_SHARE = 0.9  # of the budget: rounding makes plans larger
_THRESHOLDS = tuple(k / 10 for k in range(1, 10))

There = tuple[dict[int, float], ...]


@final
@dataclass(frozen=True)
class LpRounding(AbstractPlanner):
    """Rounds by thresholds. One linear programme of O(recipes * reads) columns.

    Arguments:
        most_recipes: of a program; larger ones are declined.
    """

    most_recipes: int = MOST_RECIPES
    name: ClassVar[str] = "lp-rounding"

    def refuses(self, problem: Problem) -> str | None:
        """Graphs that have no stage program, and those with too many recipes."""
        return refuses_stages(problem.graph) or refuses_size(problem, self.most_recipes)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with the fastest plan that fits, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""

        def policy(search: Search) -> None:
            there = _relax(search)
            _try(search, ([{v for v, x in row.items() if x > level} for row in there] for level in _THRESHOLDS))

        return follow(problem, watch, self.name, self.refuses(problem), policy)


@final
@dataclass(frozen=True)
class RandomRounding(AbstractPlanner):
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

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with the fastest plan that fits, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""

        def policy(search: Search) -> None:
            there = _relax(search)
            dice = random.Random(problem.seed)
            draws = ([{v for v, x in row.items() if dice.random() < x} for row in there] for _ in range(self.samples))
            _try(search, draws)

        return follow(problem, watch, self.name, self.refuses(problem), policy)


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
    for wanted in choices:
        if not wanted or search.work >= search.problem.work:
            return
        search.work += 1
        plan = residence(search.program, wanted)
        if plan is not None and plan.recompute_lists not in seen:
            seen.add(plan.recompute_lists)
            offer(search, plan)
        search.clock.tick()
