"""What every placer is: a frozen value with a name that can refuse a packing or place it.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from lowtide.ir.packing import Packed, Packing

_WORK, _WORK_PER_BUFFER, _MANY = 1_200_000, 400, 2000


def default_work(packing: Packing) -> int:
    """The default effort: about a second, and more for more than 2,000 buffers.

    A unit of work is about a microsecond: 1,000 buffers looked at, or a node of the exact search among 500 buffers.
    """
    return _WORK + _WORK_PER_BUFFER * max(0, len(packing.buffers) - _MANY)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a search for a placement.

    Arguments:
        stage: what runs now, `"orders"`.
        elapsed_s: since the placing began.
        height_B: of the best placement so far; None before there is one.
        bound_B: best proved lower bound so far.
        work: spent so far.
    """

    stage: str
    elapsed_s: float
    height_B: int | None
    bound_B: int
    work: int


Watch = Callable[[Progress], None]


class AbstractPlacer(abc.ABC):
    """Turns a packing into offsets. To tweak a placer, wrap it."""

    name: ClassVar[str]

    @abc.abstractmethod
    def refuses(self, packing: Packing) -> str | None:
        """Says why this placer cannot treat the packing, or None if it can. O(buffers)."""

    @abc.abstractmethod
    def place(self, packing: Packing, *, seed: int = 0, work: int | None = None, watch: Watch | None = None) -> Packed:
        """Places.

        Arguments:
            packing: one that is not refused.
            seed: of whatever is random.
            work: most effort to spend; None for `default_work`.
            watch: called now and then with the progress, from the calling thread.

        Returns: an offset for every buffer; the same ones for the same packing, seed and work. A height above the
            packing's capacity means that the work did not suffice, or, where the bound is above it too, that nothing
            would.

        Raises:
            PackingError: if the packing makes no sense, or is refused; the text is the reason.
        """
