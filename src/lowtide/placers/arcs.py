"""A packing as the core reads it: arcs of events on a circle, and sizes in a common unit. Units: `_B` bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lowtide._core import Lifetimes
from lowtide.ir.packing import Packing


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
class Arcs:
    """The buffers of a packing that have bytes.

    Arguments:
        lifetimes: theirs.
        numbers: which buffer of the packing each of them is.
        unit_B: what sizes and offsets are counted in: the greatest common divisor of all of them, so that a placement
            in which every buffer is pushed down has a whole height.
        traits: of each of them.
    """

    lifetimes: Lifetimes
    numbers: tuple[int, ...]
    unit_B: int
    traits: tuple[Traits, ...]


def arcs_of(packing: Packing) -> Arcs:
    """Reads a packing for the core: ticks become events, bytes become units.

    Arguments:
        packing: a valid one.

    O(buffers x log(buffers)).
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
    return Arcs(lifetimes, numbers, unit_B, traits)


def _crowds(start: list[int], length: list[int], size: list[int], circle: int) -> list[int]:
    """The most that is live at some event of each arc, from a sparse table over two laps of the circle."""
    begin, long, units = (np.asarray(numbers, dtype=np.int64) for numbers in (start, length, size))
    change = np.zeros(2 * circle + 1, dtype=np.int64)
    for lap in (-circle, 0, circle):
        np.add.at(change, np.clip(begin + lap, 0, 2 * circle), units)
        np.subtract.at(change, np.clip(begin + lap + long, 0, 2 * circle), units)
    table = [np.cumsum(change)]
    while 2 ** len(table) <= long.max(initial=0):
        below, half = table[-1], 2 ** (len(table) - 1)
        table.append(np.maximum(below[:-half], below[half:]))
    crowds = []
    for first, steps in zip(start, length, strict=True):
        level = steps.bit_length() - 1
        crowds.append(int(max(table[level][first], table[level][first + steps - 2**level])))
    return crowds
