"""Everything that the forward saves for the backward is offloaded to the host and prefetched one operator ahead.

What `torch.autograd.graph.save_on_cpu` does, with copies that overlap the computation. With every block a checkpoint in
front of it, only the checkpoints are saved, and what lies between two of them is recomputed: the strongest of the
simple recipes that people combine by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.forward import forwards, taus_of_checkpoints
from lowtide.planners.classic.itinerary import Itinerary
from lowtide.planners.classic.static_policy import follow_moves, haul, refuses_links
from lowtide.planners.classic.traffic import Policy
from lowtide.planners.search import Search


@final
@dataclass(frozen=True)
class SavedOffload(AbstractPlanner):
    """All saved values go to the host. O(graph)."""

    name: ClassVar[str] = "offload-saved"

    def refuses(self, problem: Problem) -> str | None:
        """Problems without links, bundles, and graphs that have no stage program."""
        return refuses_links(problem)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow_moves(problem, watch, self.name, self.refuses(problem), _everything)


@final
@dataclass(frozen=True)
class CheckpointOffload(AbstractPlanner):
    """Articulation points of the forward go to the host, what lies between two of them is recomputed. O(graph)."""

    name: ClassVar[str] = "offload-checkpoints"

    def refuses(self, problem: Problem) -> str | None:
        """Problems without links, bundles, and graphs that have no stage program."""
        return refuses_links(problem)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow_moves(problem, watch, self.name, self.refuses(problem), _checkpoints)


def _everything(search: Search) -> None:
    haul(search, search.program.lift(search.program.keep_all(0)), saved)


def _checkpoints(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in half.articulation_points]
    state = search.program.keep_all(0)
    if state.assign(taus_of_checkpoints(search.program, halves, chosen)):
        haul(search, search.program.lift(state), saved)


def saved(trip: Itinerary) -> Policy:
    """Every value that the backward reads is sent, and fetched where the run before its first reader begins."""
    ahead = {v: max(trip.turn, trip.run_before(back)) for v, (_, back) in trip.crossing.items()}
    return Policy(sent=frozenset(trip.crossing), ahead=ahead)
