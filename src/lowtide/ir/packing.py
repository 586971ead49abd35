"""What is to be placed, and where it was placed: buffers with lifetimes and sizes, and their offsets.

Ticks are any integers that order the events; a lifetime is half open. Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lowtide.errors import PackingError

_MOST = 2**62  # bytes, so that sums of them stay exact
_MOST_TICKS = 2**63


class Buffer(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are held for a while.

    Arguments:
        start, stop: it holds its bytes in ticks [start, stop). In a packing with a period, `start >= stop` means that
            it lives across the end: in [start, period) and in [0, stop).
        size_B: how many, as asked for; a placer rounds them up to the alignment.
        offset_B: where they must lie, for a storage that others share or for a live block; None leaves it to the
            placer.
    """

    start: int
    stop: int
    size_B: int
    offset_B: int | None = None


class Packing(msgspec.Struct, frozen=True):
    """Buffers that want offsets of their own.

    Arguments:
        alignment_B: of every offset; sizes count as rounded up to it.
        period: ticks after which everything happens again; None if it happens once.
        capacity_B: a height that is low enough: a placer may stop there; None asks for the lowest.
    """

    buffers: tuple[Buffer, ...]
    alignment_B: int = 1
    period: int | None = None
    capacity_B: int | None = None

    def rounded_B(self, size_B: int) -> int:
        """A size, rounded up to the alignment."""
        return -(-size_B // self.alignment_B) * self.alignment_B


class Packed(msgspec.Struct, frozen=True):
    """Where every buffer lies.

    Arguments:
        offsets_B: one per buffer of the packing.
        height_B: bytes that have to be reserved: the highest end of a buffer, its size rounded up.
        bound_B: proved: no placement is lower.
        placer: who found it.
        optimal: whether no placement is lower, that is, height and bound are equal.
        seconds_s: it took.
        stats: whatever else the placer counted.
    """

    offsets_B: tuple[int, ...]
    height_B: int
    bound_B: int
    placer: str
    optimal: bool
    seconds_s: float
    stats: dict[str, Any] = {}


def validate(packing: Packing) -> None:
    """Checks that a packing makes sense.

    Raises:
        PackingError: names the first buffer that does not, and why, or two with given offsets that share a byte at
            some tick.

    O(buffers), and for those with given offsets what a sweep over their bytes takes.
    """
    if packing.alignment_B <= 0:
        raise PackingError(f"an alignment of {packing.alignment_B} bytes: it must be at least 1")
    if packing.alignment_B > _MOST or sum(packing.rounded_B(b.size_B) for b in packing.buffers) > _MOST:
        raise PackingError(f"more than {_MOST} bytes in all, their alignment counted: no memory has so many")
    period = packing.period
    if period is not None and period <= 0:
        raise PackingError(f"a period of {period} ticks: it must be at least 1, or None")
    for number, buffer in enumerate(packing.buffers):
        fault = _fault(buffer, packing)
        if fault is not None:
            raise PackingError(f"{_name(packing, number)} {fault}")
    _check_given(packing)


def _name(packing: Packing, number: int) -> str:
    buffer = packing.buffers[number]
    return f"buffer {number} (ticks {buffer.start} to {buffer.stop}, {buffer.size_B} B)"


def _fault(buffer: Buffer, packing: Packing) -> str | None:
    """What is wrong with one buffer, if anything."""
    if buffer.size_B < 0:
        return "has a negative size"
    if max(abs(buffer.start), abs(buffer.stop)) > _MOST_TICKS or (buffer.offset_B or 0) > _MOST:
        return "has ticks beyond 64 bits, or an offset where no memory is"
    if packing.period is None:
        if buffer.start >= buffer.stop:
            return "ends before it begins: give the packing a period if it lives across the end"
    elif not (0 <= buffer.start < packing.period and 0 <= buffer.stop <= packing.period):
        return f"leaves the period of {packing.period} ticks"
    if buffer.offset_B is not None and (buffer.offset_B < 0 or buffer.offset_B % packing.alignment_B):
        return f"has the given offset {buffer.offset_B}, not a multiple of the alignment {packing.alignment_B}"
    return None


def _check_given(packing: Packing) -> None:
    """That no two buffers with given offsets meet."""
    given = sorted((b.offset_B, n) for n, b in enumerate(packing.buffers) if b.offset_B is not None and b.size_B > 0)
    below: list[tuple[int, int]] = []  # end, number
    for offset_B, number in given:
        buffer = packing.buffers[number]
        below = [entry for entry in below if entry[0] > offset_B]
        for _, other in below:
            if _meet(packing.buffers[other], buffer, packing.period):
                raise PackingError(
                    f"{_name(packing, other)} and {_name(packing, number)} have given offsets, at which they collide"
                )
        below.append((offset_B + packing.rounded_B(buffer.size_B), number))


def _meet(a: Buffer, b: Buffer, period: int | None) -> bool:
    """Whether two lifetimes share a tick."""
    if period is None:
        return a.start < b.stop and b.start < a.stop
    a_ticks, b_ticks = ((x.stop - x.start - 1) % period + 1 for x in (a, b))
    return (b.start - a.start) % period < a_ticks or (a.start - b.start) % period < b_ticks
