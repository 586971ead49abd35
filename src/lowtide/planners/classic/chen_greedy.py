"""Chen's greedy: walk along the forward; when what was passed since the last checkpoint exceeds b, checkpoint.

Algorithm 3 of T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", arXiv
1604.06174 (2016), with b swept; the variants (articulation points, linearised) follow P. Jain et al., "Checkmate",
MLSys 2020.

Units: `_B` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.forward import Forward, forwards, taus_of_checkpoints
from lowtide.planners.classic.policy import attempt, follow
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search

SWEEP = 300  # values of b, in equal steps up to what the whole forward produces


@final
@dataclass(frozen=True)
class ChenGreedy(AbstractPlanner):
    """The candidates are the forward's articulation points. O(sweep * graph)."""

    name: ClassVar[str] = "chen-greedy"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with the fastest plan of the sweep that fits, OPTIMAL where everything fits, else no plan."""
        return follow(problem, watch, self.name, self.refuses(problem), lambda search: sweep(search, linear=False))


@final
@dataclass(frozen=True)
class ChenGreedyLinear(AbstractPlanner):
    """The candidates are all forward recipes in program order. O(sweep * graph)."""

    name: ClassVar[str] = "chen-greedy-linear"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with the fastest plan of the sweep that fits, OPTIMAL where everything fits, else no plan."""
        return follow(problem, watch, self.name, self.refuses(problem), lambda search: sweep(search, linear=True))


def sweep(search: Search, *, linear: bool) -> None:
    """Tries the checkpoints of every b, those that come out alike once; stops at the limit of work."""
    halves = forwards(search.program)
    total_B = max((sum(half.size_B(t) for t in half.stages) for half in halves), default=0)
    seen: set[tuple[int, ...]] = set()
    for k in range(SWEEP):
        passed_B = total_B * k // SWEEP
        chosen = tuple(t for half in halves for t in _checkpoints(half, passed_B, linear=linear))
        if chosen not in seen and search.work < search.problem.work:
            seen.add(chosen)
            attempt(search, taus_of_checkpoints(search.program, halves, chosen))


def _checkpoints(half: Forward, most_B: int, *, linear: bool) -> list[int]:
    candidates = frozenset(half.stages if linear else half.articulation_points)
    chosen, passed_B = [], 0
    for t in half.stages:
        passed_B += half.size_B(t)
        if t in candidates and passed_B > most_B:
            chosen.append(t)
            passed_B = 0
    return chosen
