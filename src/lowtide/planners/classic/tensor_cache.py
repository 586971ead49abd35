"""The device as a cache of tensors: what was used least recently is evicted to the host when the device is full.

The tensor cache of L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks",
PPoPP 2018, arXiv 1801.04380: a miss fetches a tensor when it is read; what a running operator touches is locked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.classic.itinerary import Itinerary
from lowtide.planners.classic.static_policy import follow_moves, haul, refuses_links
from lowtide.planners.classic.traffic import Policy
from lowtide.planners.search import Search


@final
@dataclass(frozen=True)
class TensorCache(AbstractPlanner):
    """Evicts what was used least recently. O(steps * values evicted at once)."""

    name: ClassVar[str] = "tensor-cache"

    def refuses(self, problem: Problem) -> str | None:
        """Problems without links, bundles, and graphs that have no stage program."""
        return refuses_links(problem)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow_moves(problem, watch, self.name, self.refuses(problem), _cached)


def _cached(search: Search) -> None:
    haul(search, search.program.lift(search.program.keep_all(0)), cached)


def cached(_: Itinerary) -> Policy:
    """Nothing is sent before the device is full."""
    return Policy(cache=True)
