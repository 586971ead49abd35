"""Offload to the host by fixed rules: what computes much, what the forward saves, or what was used least recently.

**What computes much** is copied as soon as it is made, and prefetched one ahead in the backward: the unified tensor
pool of L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018,
arXiv 1801.04380, without its cache; before it M. Rhu et al., "vDNN", MICRO 2016, sent the inputs of convolutions. Sent
are the outputs of convolutions, matrix products and attention that the backward reads; where one of them is needed
there, the one before it in the network is fetched.

**What the forward saves** for the backward is offloaded and prefetched one operator ahead: what
`torch.autograd.graph.save_on_cpu` does, with copies that overlap the computation. With every block a checkpoint in
front of it, only the checkpoints are saved, and what lies between two of them is recomputed: the strongest of the
simple recipes that people combine by hand.

**The tensor cache** of SuperNeurons takes the device as a cache of tensors: what was used least recently is evicted
when the device is full; a miss fetches a tensor when it is read; what a running operator touches is locked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.schedule import Run
from lowtide.planners.chain.forward import forwards, retention_of_checkpoints
from lowtide.planners.classic.itinerary import Itinerary
from lowtide.planners.classic.policy import HEAVY, AbstractOffloadPlanner, haul
from lowtide.planners.classic.traffic import Policy
from lowtide.planners.search import Search


@final
@dataclass(frozen=True)
class SavedOffload(AbstractOffloadPlanner):
    """All saved values go to the host. O(graph)."""

    name: ClassVar[str] = "offload-saved"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _everything(search)


@final
@dataclass(frozen=True)
class CheckpointOffload(AbstractOffloadPlanner):
    """Articulation points of the forward go to the host, what lies between two of them is recomputed. O(graph)."""

    name: ClassVar[str] = "offload-checkpoints"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _checkpoints(search)


def _everything(search: Search) -> None:
    haul(search, search.program.lift(search.program.keep_all(0)), saved)


def _checkpoints(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in half.articulation_points]
    state = search.program.keep_all(0)
    if state.assign(retention_of_checkpoints(search.program, halves, chosen)):
        haul(search, search.program.lift(state), saved)


def saved(trip: Itinerary) -> Policy:
    """Every value that the backward reads is sent, and fetched where the run before its first reader begins."""
    ahead = {v: max(trip.turn, trip.run_before(back)) for v, (_, back) in trip.crossing.items()}
    return Policy(sent=frozenset(trip.crossing), ahead=ahead)


@final
@dataclass(frozen=True)
class ConvolutionOffload(AbstractOffloadPlanner):
    """Convolutions' outputs go to the host, fetched one ahead. O(graph)."""

    name: ClassVar[str] = "offload-convolutions"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _offload(search)


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


@final
@dataclass(frozen=True)
class TensorCache(AbstractOffloadPlanner):
    """Evicts what was used least recently. O(steps * values evicted at once)."""

    name: ClassVar[str] = "tensor-cache"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _cached(search)


def _cached(search: Search) -> None:
    haul(search, search.program.lift(search.program.keep_all(0)), cached)


def cached(_: Itinerary) -> Policy:
    """Nothing is sent before the device is full."""
    return Policy(cache=True)
