"""lowtide's own policy where nothing is known of what comes: the cheapest bytes, adjoining ones if they cost little
more.

What a value is minded is the cost of rematerialising it: its own calls and every evicted value that would have to come
back first, by the square root of how long it was not used. The old are wanted last in a backward, but how old says
little about how much later, and a root takes the edge off. What an operator is using now may be in use for the last
time, as a gradient is, so a value that is made of it is minded as if it were gone. What no handle keeps alive, and
nothing evicted that has one would need, is free.

Victims go one by one, by that cost per byte, and each is reckoned with those that went before it. Scattered, they
leave holes, and blocks have to be slid together, which has a price per byte; so a window (Coop's idea, see
`window.py`) is taken instead where it costs at most half as much again per byte as victims and slides. Rebuilt values
are kept until their bytes are wanted.

Where even evicting everything would make no hole, as inside a kernel whose arguments fence the arena, nothing goes.

Values of hardly any bytes go last of all. To recompute a loss takes the whole forward as soon as the backward has let
go of what it was made of; what its four bytes are worth is never as much.

Where host memory may be used, a value goes there if the copies to and fro take less than recomputing it.
"""

from __future__ import annotations

import abc
import heapq
import math
from collections.abc import Sequence
from typing import ClassVar, final

from tests.oracle.capacity import SMALL_B
from tests.oracle.ledger import Call, Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Regions, has_handle, is_wanted, parents
from tests.oracle.policies.base import AbstractPolicy, Scene
from tests.oracle.policies.density import Density
from tests.oracle.policies.window import Window, cheapest_window, moved_for, pieces

_NEARNESS = 1.5  # how much more per byte a window may cost than scattered victims
# Of a byte, against the mean cost of making one: it is read and written, as by the cheapest calls. In all recorded
# steps, of GPUs and by the formula, these cost from a third to half of the mean.
_MOVE = 0.4
_NS_PER_s = 1e9
_DUST = 8192  # a value of less than the capacity by this is evicted last, unless it is larger than small blocks are
MOST = 1e300  # how much one minds what will not be recomputed, or is not worth it


class AbstractTide(AbstractPolicy):
    """Victims by cost per byte, and windows; what a value is minded is for others to say.

    Arguments:
        host_B: host memory for values that are offloaded.
        link_Bps: rate of copies to and from it; 0: none are made.
    """

    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Regions
    sheds: ClassVar[bool] = False
    slides_at_last: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def __init__(self, host_B: int = 0, link_Bps: float = 0.0) -> None:
        self._host_B = host_B
        self._link_Bps = link_Bps
        self.density = Density()

    @abc.abstractmethod
    def mind(self, scene: Scene, value: Value) -> float:
        """How much one would mind evicting the value; 0: not at all."""

    def ended(self, scene: Scene, call: Call) -> None:  # noqa: ARG002
        self.density.learn(call)

    def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:
        """A window, or the value that costs least per byte, or nothing where blocks are to be slid together.

        O(blocks + candidates).
        """
        evictable = scene.ledger.evictable
        minds: dict[int, float] = {}
        ranked: list[tuple[float, int, Value]] = []
        for rank, value in enumerate(evictable.values()):
            scene.candidates += 1
            cost = minds[value.id] = self.mind(scene, value)
            if value.size_B:
                ranked.append((cost / float(value.size_B), -rank, value))
        if not ranked:
            return ()
        heapq.heapify(ranked)
        cheapest = ranked[0][2]
        reserved_B = scene.capacity.reserved_B(need_B)
        missing_B = reserved_B - scene.capacity.free_B
        cost, freed_B = 0.0, 0
        leaving: set[int] = set()
        while ranked and freed_B < missing_B:
            value = heapq.heappop(ranked)[2]
            leaving.add(value.id)
            cost += minds[value.id]
            freed_B += value.size_B
        capacity = pieces(scene.capacity, lambda owner: minds.get(owner, math.inf))
        moved_B = None
        if freed_B >= missing_B:
            moved_B = moved_for(capacity, reserved_B, leaving, lambda owner: _is_movable(scene, owner))
        window = cheapest_window(capacity, reserved_B)
        if window is None and capacity and need_B > SMALL_B:  # small blocks have places of their own
            all_B = moved_for(capacity, reserved_B, minds.keys(), lambda owner: _is_movable(scene, owner))
            if all_B is None:
                return ()
        if window and window.owners:
            victims = tuple(evictable[owner] for owner in window.owners)
            moves = 0.0 if moved_B is None else self._moves(scene, window, victims, moved_B)
            if moved_B is None or (window.cost < MOST and _is_near(window, cost + moves, missing_B, freed_B)):
                return victims
        return () if missing_B <= 0 and moved_B is not None and not scene.stuck else (cheapest,)

    def _moves(self, scene: Scene, window: Window, victims: Sequence[Value], moved_B: int) -> float:
        """What slides cost: their time, weighed as the window's values weigh theirs."""
        back_ns = 0.0
        for value in victims:
            back_ns += self.back_ns(scene, value)
        scale = window.cost / back_ns if back_ns > 0 else 0.0
        return float(moved_B) * (self.density.mean_ns() * _MOVE) * scale

    def unguided(self, scene: Scene, value: Value) -> float:
        """Where nothing is known of what comes: what rematerialising it takes, by the root of its staleness."""
        return self.weighed(scene, value, math.sqrt(max(1.0, float(scene.staleness(value)))))

    def weighed(self, scene: Scene, value: Value, distance: float) -> float:
        """What rematerialising the value takes, by how far off that is; dust is minded most."""
        if value.size_B <= min(SMALL_B, scene.capacity.capacity_B // _DUST):
            return MOST
        return self.back_ns(scene, value) / distance

    def moves_ns(self, moved_B: int) -> int:
        """What sliding so many bytes takes."""
        return int(float(moved_B) * (self.density.mean_ns() * _MOVE))

    def sends(self, scene: Scene, value: Value) -> bool:
        return self._is_sendable(scene, value) and self._copies_ns(value) < float(_again_ns(scene, value))

    def back_ns(self, scene: Scene, value: Value) -> float:
        """What rematerialising the value takes, by the shorter of both means."""
        again_ns = float(_again_ns(scene, value))
        return min(again_ns, self._copies_ns(value)) if self._is_sendable(scene, value) else again_ns

    def _is_sendable(self, scene: Scene, value: Value) -> bool:
        if self._link_Bps <= 0 or value.size_B == 0:
            return False
        used_B = sum(v.size_B for v in scene.ledger.values.values() if v.on_host)
        return used_B + value.size_B <= self._host_B

    def _copies_ns(self, value: Value) -> float:
        return 2.0 * float(value.size_B) / self._link_Bps * _NS_PER_s


def _is_movable(scene: Scene, owner: int) -> bool:
    value = scene.ledger.values.get(owner)
    return value is not None and value.resident and scene.movable(value)


def is_idle(value: Value) -> bool:
    """Whether nobody wants the value: it has no handle, and nothing evicted that has one would need it."""
    return not has_handle(value) and not is_wanted(value)


def _again_ns(scene: Scene, value: Value) -> int:
    """What recomputing it takes, with those of values that its calls need and that are evicted, or in use now."""
    neighbourhood = scene.neighbourhood
    assert isinstance(neighbourhood, Regions)
    cost_ns = value.cost_ns + neighbourhood.ancestors_ns(value)
    for parent in parents(value):
        if parent.pins and parent.resident and parent.call is not None:
            cost_ns += parent.cost_ns + neighbourhood.ancestors_ns(parent)
    return cost_ns


def _is_near(window: Window, cost: float, missing_B: int, freed_B: int) -> bool:
    """Whether the window costs little more per byte than victims and slides; or no more than slides alone suffice."""
    if missing_B <= 0:
        return window.cost <= cost
    return window.cost / float(window.evicted_B) <= _NEARNESS * cost / float(freed_B)


@final
class Tide(AbstractTide):
    """See the module."""

    name: ClassVar[str] = "tide"

    def mind(self, scene: Scene, value: Value) -> float:
        return 0.0 if is_idle(value) else self.unguided(scene, value)
