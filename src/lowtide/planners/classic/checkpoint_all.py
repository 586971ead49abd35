"""Every articulation point of the forward is a checkpoint, what lies between two is recomputed.

"Checkpoint all (AP)" of P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization",
MLSys 2020; it is what wrapping each block of a network in a checkpoint does. Checkpointing everything is `KeepAll`.
"""

from __future__ import annotations

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
class CheckpointAll(AbstractPlanner):
    """All articulation points. O(graph)."""

    name: ClassVar[str] = "checkpoint-all-points"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; it does not know budgets, so too small a one is UNSOLVED."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow(problem, watch, self.name, self.refuses(problem), _every_point)


def _every_point(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in half.articulation_points]
    attempt(search, taus_of_checkpoints(search.program, halves, chosen))
