"""Coop: windows of neighbouring bytes, operators of like cost per byte side by side, updates in place.

Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023. What is evicted for a request is a run of adjoining
blocks and holes of the least summed score, so that all freed bytes are of use. Each of its three techniques can be
left out. Its list of cheap operators is replaced by what the list stands for: the cost per byte of a call, against
the mean so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, final

from tests.oracle.capacity import SMALL_B, End
from tests.oracle.ledger import Call, Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Classes
from tests.oracle.policies.base import AbstractPolicy, Scene
from tests.oracle.policies.density import Density
from tests.oracle.policies.upstream import upstream_ns
from tests.oracle.policies.window import cheapest_window, pieces


class AbstractCoop(AbstractPolicy):
    """What all variants share.

    Attributes:
        windows: a window is evicted; else the value of the least score by size, until a hole fits.
        partitions: calls of more than mean cost per byte grow from the low end, others from the high end.
    """

    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Classes
    windows: ClassVar[bool] = True
    partitions: ClassVar[bool] = True

    def __init__(self) -> None:
        self._density = Density()

    def ended(self, scene: Scene, call: Call) -> None:  # noqa: ARG002
        self._density.learn(call)

    def end_for(self, cost_ns: int, size_B: int) -> End:
        return End.LOW if not self.partitions or self._density.is_dense(cost_ns, size_B) else End.HIGH

    def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:
        """A window; one value where windows are left out or there are no addresses. O(blocks)."""
        if not self.windows or not scene.capacity.blocks():
            return self._single(scene)
        evictable = scene.ledger.evictable

        def mind(value_id: int) -> float:
            value = evictable.get(value_id)
            if value is None or value.size_B <= SMALL_B:
                return math.inf
            scene.candidates += 1
            return self._score(scene, value)

        window = cheapest_window(pieces(scene.capacity, mind), scene.capacity.reserved_B(need_B))
        return tuple(evictable[owner] for owner in window.owners) if window else ()

    def _single(self, scene: Scene) -> Sequence[Value]:
        best: Value | None = None
        least = math.inf
        for value in scene.ledger.evictable.values():
            if value.size_B > SMALL_B:
                scene.candidates += 1
                score = self._score(scene, value) / float(value.size_B)
                if score <= least:
                    best, least = value, score
        return () if best is None else (best,)

    def _score(self, scene: Scene, value: Value) -> float:
        """Cost by staleness; the window fixes the bytes. What was used this instant is minded most."""
        neighbourhood = scene.neighbourhood
        assert isinstance(neighbourhood, Classes)
        stale_ns = scene.staleness(value)
        return float(value.cost_ns + upstream_ns(neighbourhood, value)) / float(stale_ns) if stale_ns > 0 else _MOST


_MOST = 1e300


@final
class Coop(AbstractCoop):
    """All three techniques."""

    name: ClassVar[str] = "coop"


@final
class CoopWithoutWindows(AbstractCoop):
    """One victim at a time, wherever it lies."""

    name: ClassVar[str] = "coop-no-windows"
    windows: ClassVar[bool] = False


@final
class CoopWithoutPartition(AbstractCoop):
    """Every block from the low end."""

    name: ClassVar[str] = "coop-no-partition"
    partitions: ClassVar[bool] = False


@final
class CoopWithoutInPlace(AbstractCoop):
    """Operators that write in place make copies. For replays: a program that runs writes where it writes."""

    name: ClassVar[str] = "coop-no-in-place"
    in_place: ClassVar[bool] = False
