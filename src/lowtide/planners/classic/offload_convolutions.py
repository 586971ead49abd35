"""What computes much is copied to the host as soon as it is made, and prefetched one ahead in the backward.

The unified tensor pool of L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural
networks", PPoPP 2018, arXiv 1801.04380, without its cache; before it M. Rhu et al., "vDNN", MICRO 2016, sent the inputs
of convolutions. Sent are the outputs of convolutions, matrix products and attention that the backward reads; where one
of them is needed there, the one before it in the network is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import Run
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.classic.itinerary import Itinerary
from lowtide.planners.classic.static_policy import follow_moves, haul, refuses_links
from lowtide.planners.classic.superneurons import HEAVY
from lowtide.planners.classic.traffic import Policy
from lowtide.planners.search import Search


@final
@dataclass(frozen=True)
class ConvolutionOffload(AbstractPlanner):
    """Convolutions' outputs go to the host, fetched one ahead. O(graph)."""

    name: ClassVar[str] = "offload-convolutions"

    def refuses(self, problem: Problem) -> str | None:
        """Problems without links, bundles, and graphs that have no stage program."""
        return refuses_links(problem)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow_moves(problem, watch, self.name, self.refuses(problem), _offload)


def _offload(search: Search) -> None:
    haul(search, search.program.lift(search.program.keep_all(0)), one_ahead)


def one_ahead(trip: Itinerary) -> Policy:
    """Every heavy output that the backward reads is sent; where one of them is needed, the next one is fetched."""
    sent = [v for v in heavy_outputs(trip) if v in trip.crossing]
    return Policy(sent=frozenset(sent), ahead=after_each_other(trip, sent))


def heavy_outputs(trip: Itinerary) -> frozenset[int]:
    """What operators that compute much produce in the forward."""
    recipes = trip.graph.recipes
    runs = (s for s in trip.schedule.steps[: trip.turn] if isinstance(s, Run))
    return frozenset(v for s in runs if HEAVY.search(recipes[s.recipe].op) for v in s.keep)


def after_each_other(trip: Itinerary, values: Iterable[int]) -> dict[int, int]:
    """Where each value is fetched: where the one that the backward needs before it is needed."""
    order = sorted(values, key=lambda v: (trip.crossing[v][1], -trip.crossing[v][0]))
    places = [trip.turn, *(trip.crossing[v][1] for v in order)]
    return dict(zip(order, places, strict=False))
