"""MegEngine's DTR, "DTE": DTR's score with adjoining free bytes added to the size.

As read from MegEngine's interpreter (`eval_func`, all exponents 1): the cost of evicted neighbours counts and the
value's own does not, whatever was recomputed often counts a little more, and only values above a size are candidates.
When nothing can be evicted any more, blocks are slid together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Classes
from tests.oracle.policies.base import AbstractPolicy, Scene
from tests.oracle.policies.upstream import upstream_ns

_MiB = 2**20
_SHARE_OF_CAPACITY = 1 / 1024  # of a candidate's least size, where that is below a MiB
_GROWTH = 1.0001  # per recomputation
_NS_PER_ms = 1e6
_EPSILON_ms = 1e-3


@final
class Dte(AbstractPolicy):
    """Cost of evicted neighbours, by size with the free bytes next to it, and by staleness; one victim at a time."""

    name: ClassVar[str] = "dte"
    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Classes
    slides_at_last: ClassVar[bool] = True

    def __init__(self) -> None:
        self._restored: Counter[int] = Counter()  # by value id

    def restored(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
        self._restored[value.id] += 1

    def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:  # noqa: ARG002
        """The value of the least score; of equals the one that became evictable last. O(evictable values x holes)."""
        least_B = min(_MiB, int(scene.capacity.capacity_B * _SHARE_OF_CAPACITY))
        best: Value | None = None
        least = math.inf
        for value in scene.ledger.evictable.values():
            if value.size_B > least_B:
                scene.candidates += 1
                score = self._score(scene, value)
                if score <= least:
                    best, least = value, score
        return () if best is None else (best,)

    def _score(self, scene: Scene, value: Value) -> float:
        assert value.offset_B is not None
        neighbourhood = scene.neighbourhood
        assert isinstance(neighbourhood, Classes)
        cost_ms = float(upstream_ns(neighbourhood, value)) / _NS_PER_ms + _EPSILON_ms
        stale_ms = float(scene.staleness(value)) / _NS_PER_ms + _EPSILON_ms
        size_MiB = float(value.size_B + scene.capacity.free_adjacent(value.offset_B)) / float(_MiB)
        return cost_ms * math.pow(_GROWTH, float(self._restored[value.id])) / (size_MiB * stale_ms)
