"""Whether a placement gives every buffer bytes of its own. Shares no code with any placer. Units: `_B` bytes."""

from __future__ import annotations

import bisect

from lowtide.errors import IllegalPlan
from lowtide.ir.packing import Buffer, Packed, Packing

Piece = tuple[int, int]


def check_packing(packing: Packing, packed: Packed) -> None:
    """Checks a placement.

    Arguments:
        packing: a valid one.
        packed: what a placer made of it.

    Raises:
        IllegalPlan: names the buffers: one that is not placed, not aligned, not at its given offset, outside the
            height, or two that share a byte at some tick; or a claim about the bound that cannot be.

    O(buffers x log(buffers)), and a list's insertions.
    """
    if len(packed.offsets_B) != len(packing.buffers):
        raise IllegalPlan(f"{len(packed.offsets_B)} offsets for {len(packing.buffers)} buffers")
    for number, (buffer, offset_B) in enumerate(zip(packing.buffers, packed.offsets_B, strict=True)):
        _check_alone(packing, packed, number, buffer, offset_B)
    _check_together(packing, packed)
    if packed.bound_B > packed.height_B:
        raise IllegalPlan(f"a height of {packed.height_B} B is below its own bound of {packed.bound_B} B")
    if packed.optimal != (packed.bound_B == packed.height_B):
        raise IllegalPlan(f"optimal: {packed.optimal}, but height {packed.height_B} B and bound {packed.bound_B} B")


def _check_alone(packing: Packing, packed: Packed, number: int, buffer: Buffer, offset_B: int) -> None:
    """Everything that concerns one buffer."""
    if offset_B < 0 or offset_B % packing.alignment_B:
        raise IllegalPlan(f"buffer {number} lies at {offset_B}, not a multiple of {packing.alignment_B} B")
    if buffer.offset_B is not None and offset_B != buffer.offset_B:
        raise IllegalPlan(f"buffer {number} lies at {offset_B}, not at its given offset {buffer.offset_B}")
    if buffer.size_B > 0 and offset_B + _size_B(packing, buffer) > packed.height_B:
        raise IllegalPlan(f"buffer {number} ends above the height of {packed.height_B} B")


def _check_together(packing: Packing, packed: Packed) -> None:
    """That no two buffers meet: whoever begins to live is held against its neighbours by address."""
    events: list[tuple[int, bool, int]] = []  # tick, whether it begins, number; at one tick, ends come first
    for number, buffer in enumerate(packing.buffers):
        if buffer.size_B:
            events += [
                event
                for start, stop in _pieces(packing, buffer)
                for event in ((start, True, number), (stop, False, number))
            ]
    live: list[tuple[int, int, int]] = []  # low, high, number; by address, none of them meeting another
    for tick, begins, number in sorted(events):
        low_B = packed.offsets_B[number]
        lifetime = (low_B, low_B + _size_B(packing, packing.buffers[number]), number)
        place = bisect.bisect_left(live, lifetime)
        if not begins:
            del live[place]
            continue
        for other_low_B, other_high_B, other in live[max(0, place - 1) : place + 1]:
            if low_B < other_high_B and other_low_B < lifetime[1]:
                raise IllegalPlan(
                    f"buffers {min(number, other)} and {max(number, other)} share bytes {max(low_B, other_low_B)} to "
                    f"{min(lifetime[1], other_high_B)} at tick {tick}"
                )
        live.insert(place, lifetime)


def _size_B(packing: Packing, buffer: Buffer) -> int:
    return (buffer.size_B + packing.alignment_B - 1) // packing.alignment_B * packing.alignment_B


def _pieces(packing: Packing, buffer: Buffer) -> list[Piece]:
    """The ticks of a buffer as one or two intervals."""
    if packing.period is None or buffer.start < buffer.stop:
        return [(buffer.start, buffer.stop)]
    return [(0, buffer.stop), (buffer.start, packing.period)] if buffer.stop else [(buffer.start, packing.period)]
