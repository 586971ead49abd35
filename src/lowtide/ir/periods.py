"""Where a sequence repeats itself: maximal stretches in which every mark comes again a fixed distance later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class Stretch(msgspec.Struct, frozen=True):
    """Marks `start` to `end`, of which each equals the one `period` later as long as that one is in the stretch."""

    start: int
    end: int
    period: int

    @property
    def times(self) -> int:
        """Whole periods that fit."""
        return (self.end - self.start) // self.period


def periodic_stretches(marks: Sequence[int]) -> list[Stretch]:
    """Finds every maximal stretch of at least two periods, but none that a shorter period explains.

    Arguments:
        marks: equal numbers where the sequence is equal; not negative.

    Returns: the longest first; of equal length the one with the shortest period.

    O(marks^2), in vector operations.
    """
    sequence = np.asarray(marks, dtype=np.int64)
    found: list[Stretch] = []
    for period in range(1, len(sequence) // 2 + 1):
        equal = np.concatenate(([False], sequence[:-period] == sequence[period:], [False]))
        turns = np.flatnonzero(equal[1:] != equal[:-1])
        for first, last in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            if last - first >= period and not _explained(found, first, last + period, period):
                found.append(Stretch(first, last + period, period))
    return sorted(found, key=lambda s: (s.start - s.end, s.period))


def _explained(found: Sequence[Stretch], start: int, end: int, period: int) -> bool:
    """Whether a shorter period that divides this one holds over the whole stretch."""
    return any(s.start <= start and end <= s.end and period % s.period == 0 for s in found)
