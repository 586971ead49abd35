"""Orders in which greedy placing does well, each a sort key over buffers.

Sizes, areas and lifetimes in falling order are folklore of offset assignment (Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", 2020, compare them).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from lowtide._core import Lifetimes
from lowtide.ir.packing import Packing

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a sort key may look at.

    Arguments:
        size: in units.
        start, length: in events, not ticks: an interval in which nothing begins or ends counts once.
        wraps: whether it lives across the end of the period.
        crowd: the most that is live at one of its ticks.
    """

    size: int
    start: int
    length: int
    wraps: bool
    crowd: int


@dataclass(frozen=True, slots=True)
class Ground:
    """A packing as the core reads it.

    Arguments:
        lifetimes: of the buffers that have bytes.
        numbers: which buffer of the packing each of them is.
        unit_B: what sizes and offsets are counted in: the greatest common divisor of all of them, so that a placement
            in which every buffer is pushed down has a whole height.
        traits: of each of them.
    """

    lifetimes: Lifetimes
    numbers: tuple[int, ...]
    unit_B: int
    traits: tuple[Traits, ...]


ORDERS: dict[str, Callable[[Traits], Key]] = {  # what succeeds most often first
    "size": lambda t: (-t.size, -t.length),
    "crowd, lifetime": lambda t: (-t.crowd, -t.length, -t.size),
    "area": lambda t: (-t.size * t.length, -t.size),
    "wrap, size": lambda t: (not t.wraps, -t.size, -t.length),
    "crowd, size": lambda t: (-t.crowd, -t.size, -t.length),
    "lifetime": lambda t: (-t.length, -t.size),
    "wrap, lifetime": lambda t: (not t.wraps, -t.length, -t.size),
    "start": lambda t: (t.start, -t.length, -t.size),
    "stop": lambda t: (-t.start - t.length, -t.length, -t.size),
}


def order_by(ground: Ground, key: Callable[[Traits], Key]) -> list[int]:
    """The buffers in the order of a sort key; equal ones as they are listed."""
    return sorted(range(len(ground.traits)), key=lambda i: key(ground.traits[i]))


def ground_of(packing: Packing) -> Ground:
    """Reads a packing for the core: ticks become events, bytes become units.

    Arguments:
        packing: a valid one.

    Cost: O(buffers x log(buffers) + the sum of lifetimes, in events).
    """
    period = packing.period
    numbers = tuple(i for i, b in enumerate(packing.buffers) if b.size_B > 0)
    chosen = [packing.buffers[i] for i in numbers]
    ticks = {b.start for b in chosen} | {b.stop for b in chosen} | {0}
    events = sorted({t % period for t in ticks} if period is not None else ticks)
    index = {tick: i for i, tick in enumerate(events)}
    circle = len(events) if period is not None else 2 * len(events) + 2
    start = [index[b.start] for b in chosen]
    stop = [index[b.stop if period is None else b.stop % period] for b in chosen]
    length = [(end - begin) % circle or circle for begin, end in zip(start, stop, strict=True)]
    sizes_B = [packing.rounded_B(b.size_B) for b in chosen]
    unit_B = math.gcd(*sizes_B, *(b.offset_B for b in chosen if b.offset_B is not None)) or packing.alignment_B
    size = [size_B // unit_B for size_B in sizes_B]
    fixed = [-1 if b.offset_B is None else b.offset_B // unit_B for b in chosen]
    lifetimes = Lifetimes(start, length, size, fixed, circle)
    crowds = _crowds(start, length, size, circle)
    traits = tuple(
        map(Traits, size, start, length, (s + n > circle for s, n in zip(start, length, strict=True)), crowds)
    )
    return Ground(lifetimes, numbers, unit_B, traits)


def _crowds(start: list[int], length: list[int], size: list[int], circle: int) -> list[int]:
    """The most that is live at some event of each arc: a sparse table over the live bytes answers each at once."""
    change = [0] * (2 * circle + 1)
    for begin, long, bytes_ in zip(start, length, size, strict=True):
        for lap in (0, circle):
            change[begin + lap] += bytes_
            change[min(begin + lap + long, 2 * circle)] -= bytes_
        if begin + long > circle:
            change[0] += bytes_
            change[begin + long - circle] -= bytes_
    table = [list(accumulate(change))]
    while 2 ** len(table) <= circle:
        below, half = table[-1], 2 ** (len(table) - 1)
        table.append([max(below[i], below[i + half]) for i in range(len(below) - half)])
    crowds = []
    for begin, long in zip(start, length, strict=True):
        level = long.bit_length() - 1
        crowds.append(max(table[level][begin], table[level][begin + long - 2**level]))
    return crowds
