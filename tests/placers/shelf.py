"""Greedy placing as one reads it, and the true optimum of tiny packings by trying every order.

Shares no code with the placers or the core.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lowtide.ir.packing import Buffer, Packing


def place_in_order(packing: Packing, order: Sequence[int], best_fit: bool) -> list[int]:
    """Offsets when buffers are placed in the order, each in the lowest gap that is large enough, or in the smallest.

    Buffers with given offsets are there from the beginning; those that the order leaves out lie at 0.
    """
    offsets_B: dict[int, int] = {n: b.offset_B for n, b in enumerate(packing.buffers) if b.offset_B is not None}
    for number in order:
        if number not in offsets_B:
            offsets_B[number] = _offset_B(packing, number, offsets_B, best_fit) if packing.buffers[number].size_B else 0
    return [offsets_B.get(number, 0) for number in range(len(packing.buffers))]


def _offset_B(packing: Packing, number: int, offsets_B: dict[int, int], best_fit: bool) -> int:
    buffer = packing.buffers[number]
    size_B = packing.rounded_B(buffer.size_B)
    taken = sorted(
        (offset_B, offset_B + packing.rounded_B(packing.buffers[other].size_B))
        for other, offset_B in offsets_B.items()
        if packing.buffers[other].size_B and ticks(packing, packing.buffers[other]) & ticks(packing, buffer)
    )
    top_B, gaps = 0, []
    for low_B, high_B in taken:
        if low_B - top_B >= size_B:
            gaps.append((low_B - top_B, top_B))
        top_B = max(top_B, high_B)
    if not gaps:
        return top_B
    return min(gaps)[1] if best_fit else gaps[0][1]


def ticks(packing: Packing, buffer: Buffer) -> set[int]:
    """The ticks at which a buffer holds its bytes."""
    if packing.period is None or buffer.start < buffer.stop:
        return set(range(buffer.start, buffer.stop))
    return set(range(buffer.start, packing.period)) | set(range(buffer.stop))


def height_B(packing: Packing, offsets_B: Sequence[int]) -> int:
    """Where the highest buffer ends."""
    pairs = zip(packing.buffers, offsets_B, strict=True)
    return max((o + packing.rounded_B(b.size_B) for b, o in pairs if b.size_B), default=0)


def optimum_B(packing: Packing) -> int:
    """The lowest height there is: first fit, in the order of its offsets, makes any placement no higher."""
    orders = itertools.permutations(range(len(packing.buffers)))
    return min(height_B(packing, place_in_order(packing, order, best_fit=False)) for order in orders)
