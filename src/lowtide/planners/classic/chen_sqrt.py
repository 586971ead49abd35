"""Chen's square root: every k-th candidate is a checkpoint, k the root of their number, the rest is recomputed.

T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174 (2016). The
variants for graphs that are no chains, articulation points and linearised, follow P. Jain et al., "Checkmate", MLSys
2020. Checkpointing every candidate is `KeepAll`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.forward import forwards, taus_of_checkpoints
from lowtide.planners.classic.policy import attempt, follow
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search


@final
@dataclass(frozen=True)
class ChenSqrt(AbstractPlanner):
    """The candidates are the forward's articulation points. O(graph)."""

    name: ClassVar[str] = "chen-sqrt"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; it does not know budgets, so too small a one is UNSOLVED."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow(problem, watch, self.name, self.refuses(problem), _at_points)


@final
@dataclass(frozen=True)
class ChenSqrtLinear(AbstractPlanner):
    """The candidates are all forward recipes in program order. O(graph)."""

    name: ClassVar[str] = "chen-sqrt-linear"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; it does not know budgets, so too small a one is UNSOLVED."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow(problem, watch, self.name, self.refuses(problem), _linear)


def every_root(candidates: Sequence[int]) -> tuple[int, ...]:
    """Every k-th candidate, k the root of their number, rounded down."""
    k = math.isqrt(len(candidates))
    return tuple(candidates[k - 1 :: k]) if k else ()


def _at_points(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in every_root(half.articulation_points)]
    attempt(search, taus_of_checkpoints(search.program, halves, chosen))


def _linear(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in every_root(half.stages)]
    attempt(search, taus_of_checkpoints(search.program, halves, chosen))
