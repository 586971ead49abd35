"""The most bytes that are live together: no placement is lower. Units: `_B` bytes."""

from __future__ import annotations

from collections import defaultdict

from lowtide.ir.packing import Packing


def live_B(packing: Packing) -> list[tuple[int, int]]:
    """Live bytes over time, sizes rounded up to the alignment.

    Returns: (tick, bytes live from that tick to the next entry), by tick. O(buffers x log(buffers)).
    """
    change_B: defaultdict[int, int] = defaultdict(int)
    for buffer in packing.buffers:
        size_B = packing.rounded_B(buffer.size_B)
        change_B[buffer.start] += size_B
        change_B[buffer.stop] -= size_B
        if buffer.start >= buffer.stop:  # it lives across the end of the period
            change_B[0] += size_B
    live, steps = 0, []
    for tick in sorted(change_B):
        live += change_B[tick]
        steps.append((tick, live))
    return steps


def bound_B(packing: Packing) -> int:
    """A height below which no placement can be.

    Arguments:
        packing: a valid one, cyclic or not.

    Returns: the most live bytes, or the end of the highest buffer with a given offset, whichever is more.
    """
    ends_B = (b.offset_B + packing.rounded_B(b.size_B) for b in packing.buffers if b.offset_B is not None and b.size_B)
    return max(max((live for _, live in live_B(packing)), default=0), max(ends_B, default=0))
