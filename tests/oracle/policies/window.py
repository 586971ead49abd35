"""The cheapest run of neighbouring blocks and holes. Torch-free.

The idea is Coop's (Zhang et al., "Coop: Memory is not a Commodity", NeurIPS 2023): what is evicted then surely makes
one hole. `src/core/arena_window.cpp` is the same search, sum by sum.

Units: `_B` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from tests.oracle.capacity import AbstractCapacity


class Piece(NamedTuple):
    """A stretch of the address range.

    Arguments:
        owner: id of the value that lies there; 0 for holes, and for bytes of nobody.
        cost: of evicting it; infinite: no window contains it.
        evicted_B: bytes in use that are evicted.
    """

    size_B: int
    owner: int
    cost: float
    evicted_B: int


class Window(NamedTuple):
    """What to evict, by address."""

    owners: tuple[int, ...]
    cost: float
    evicted_B: int


def pieces(capacity: AbstractCapacity, mind: Callable[[int], float]) -> list[Piece]:
    """The range by address, without gap; nothing where there are no addresses.

    Arguments:
        mind: what it costs to evict the value of this id; infinite where it cannot go.
    """
    found: list[Piece] = []
    at_B = 0
    for block in capacity.blocks():
        if block.offset_B > at_B:
            found.append(Piece(block.offset_B - at_B, 0, 0.0, 0))
        at_B = block.offset_B + block.reserved_B
        cost = mind(block.tag) if block.tag else math.inf
        found.append(Piece(block.reserved_B, block.tag, cost, block.reserved_B))
    if found and at_B < capacity.capacity_B:
        found.append(Piece(capacity.capacity_B - at_B, 0, 0.0, 0))
    return found


def cheapest_window(capacity: Sequence[Piece], need_B: int) -> Window | None:
    """The run of at least `need_B` of the least sum of costs; of equals the fewest evicted bytes, then the first.

    O(pieces).
    """
    best: tuple[float, int, int, int] | None = None  # cost, evicted_B, first, last
    sum_from = [0.0] * len(capacity)  # costs of first .. middle - 1, summed from above: nothing is ever subtracted
    tail = 0.0  # costs of middle .. last
    first = middle = yield_B = evicted_B = 0
    for last, added in enumerate(capacity):
        if math.isinf(added.cost):
            first, yield_B, evicted_B = last + 1, 0, 0
            continue
        tail += added.cost
        yield_B += added.size_B
        evicted_B += added.evicted_B
        while first < last and yield_B - capacity[first].size_B >= need_B:
            yield_B -= capacity[first].size_B
            evicted_B -= capacity[first].evicted_B
            first += 1
        if yield_B < need_B:
            continue
        if first >= middle:
            total = 0.0
            for i in range(last, first - 1, -1):
                total += capacity[i].cost
                sum_from[i] = total
            middle, tail = last + 1, 0.0
        cost = sum_from[first] + tail
        if best is None or (cost, evicted_B) < best[:2]:
            best = (cost, evicted_B, first, last)
    if best is None:
        return None
    cost, evicted_B, first, last = best
    return Window(tuple(piece.owner for piece in capacity[first : last + 1] if piece.owner), cost, evicted_B)


def moved_for(capacity: Sequence[Piece], need_B: int, leaving: Set[int], movable: Callable[[int], bool]) -> int | None:
    """The least bytes that sliding moves to make a hole of `need_B`, once the values named are gone; None: none does.

    Arguments:
        movable: whether the value of this id may be moved.

    O(pieces).
    """
    slid = [
        Piece(piece.size_B, 0, 0.0, 0)
        if not piece.evicted_B or piece.owner in leaving
        else Piece(0, 0, float(piece.size_B) if piece.owner and movable(piece.owner) else math.inf, 0)
        for piece in capacity
    ]
    run = cheapest_window(slid, need_B)
    return None if run is None else int(run.cost)
