"""Keeps account of the bytes of a budget, with addresses or without. Torch-free.

A capacity knows nothing of values: it has blocks, each with the id of whose bytes they are. `Tank` counts bytes as
DTR's simulator does; `Addresses` is the arena that the engine has under torch, so that holes count too.

Units: `_B` bytes.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import final

from lowtide._core import Arena, Block


class End(enum.Enum):
    """The end of the range, or of a hole, from which a block is carved."""

    LOW = 0
    HIGH = 1


NOBODY = 0  # the owner of what a running call has taken
Move = tuple[int, int, int]  # from_B, to_B, size_B

SMALL_B = 10 * 1024  # as in Coop's allocator
_ZONE_SHARE = 128  # of a capacity: what is kept for small blocks
_MOST_ZONE_B = 10 * 2**20


class AbstractCapacity(abc.ABC):
    """So many bytes, and who has which of them."""

    @property
    @abc.abstractmethod
    def capacity_B(self) -> int:
        """All of it."""

    @property
    @abc.abstractmethod
    def in_use_B(self) -> int:
        """What blocks take, with what alignment adds."""

    @property
    @abc.abstractmethod
    def peak_B(self) -> int:
        """The most that was ever in use."""

    @property
    def free_B(self) -> int:
        """What no block has, in one piece or in many."""
        return self.capacity_B - self.in_use_B

    @abc.abstractmethod
    def reserved_B(self, size_B: int) -> int:
        """What a block of this size takes."""

    @abc.abstractmethod
    def fits(self, size_B: int) -> bool:
        """Whether a block of this size would find a place now."""

    @abc.abstractmethod
    def allocate(self, size_B: int, end: End, owner: int) -> int | None:
        """A block's offset, or None where there is no place."""

    @abc.abstractmethod
    def free(self, offset_B: int) -> None:
        """Gives a block back."""

    @abc.abstractmethod
    def retag(self, offset_B: int, owner: int) -> None:
        """Says whose the bytes of a block are from now on."""

    @abc.abstractmethod
    def blocks(self) -> Sequence[Block]:
        """Every block by address; `tag` is its owner. Empty where there are no addresses."""

    @abc.abstractmethod
    def free_adjacent(self, offset_B: int) -> int:
        """Free bytes directly before and after the block."""

    @abc.abstractmethod
    def slide_for(self, size_B: int, movable: Set[int]) -> list[Move]:
        """Slides blocks, of those at the offsets given, so that a block of this size finds a place.

        Returns: the slides in order; empty where no sliding makes such a hole, or there is one.
        """


@final
class Tank(AbstractCapacity):
    """Bytes alone: any free byte is as good as any other."""

    def __init__(self, capacity_B: int) -> None:
        self._capacity_B = capacity_B
        self._in_use_B = 0
        self._peak_B = 0
        self._sizes_B: dict[int, int] = {}
        self._next = 1

    @property
    def capacity_B(self) -> int:
        return self._capacity_B

    @property
    def in_use_B(self) -> int:
        return self._in_use_B

    @property
    def peak_B(self) -> int:
        return self._peak_B

    def reserved_B(self, size_B: int) -> int:
        return size_B

    def fits(self, size_B: int) -> bool:
        return self._in_use_B + size_B <= self._capacity_B

    def allocate(self, size_B: int, end: End, owner: int) -> int | None:  # noqa: ARG002
        """A number that stands for the block; it says nothing about a place."""
        if not self.fits(size_B):
            return None
        ticket, self._next = self._next, self._next + 1
        self._sizes_B[ticket] = size_B
        self._in_use_B += size_B
        self._peak_B = max(self._peak_B, self._in_use_B)
        return ticket

    def free(self, offset_B: int) -> None:
        self._in_use_B -= self._sizes_B.pop(offset_B)

    def retag(self, offset_B: int, owner: int) -> None:
        pass

    def blocks(self) -> Sequence[Block]:
        return ()

    def free_adjacent(self, offset_B: int) -> int:  # noqa: ARG002
        return 0

    def slide_for(self, size_B: int, movable: Set[int]) -> list[Move]:  # noqa: ARG002
        return []


@final
@dataclass(frozen=True)
class Addresses(AbstractCapacity):
    """Places in an arena.

    Arguments:
        arena: whose blocks carry the id of the value that they hold, or 0.
        small_B: blocks up to this size lie apart, so that they do not fence the rest: in a zone at the high end, while
            they fit there, and from the high end otherwise. Other blocks lie in that zone where there is no other
            place.
    """

    arena: Arena
    small_B: int = 0

    @property
    def _zone_lo_B(self) -> int:
        capacity_B = self.arena.capacity_B
        zone_B = min(_MOST_ZONE_B, capacity_B // _ZONE_SHARE) if self.small_B else 0
        return (capacity_B - zone_B) // self.arena.alignment_B * self.arena.alignment_B

    @property
    def capacity_B(self) -> int:
        return self.arena.capacity_B

    @property
    def in_use_B(self) -> int:
        return self.arena.statistics().in_use_B

    @property
    def peak_B(self) -> int:
        return self.arena.statistics().peak_in_use_B

    def reserved_B(self, size_B: int) -> int:
        unit_B = self.arena.alignment_B
        return max(1, -(-size_B // unit_B)) * unit_B

    def fits(self, size_B: int) -> bool:
        return self.arena.statistics().largest_hole_B >= self.reserved_B(size_B)

    def allocate(self, size_B: int, end: End, owner: int) -> int | None:
        lo_B, capacity_B = self._zone_lo_B, self.arena.capacity_B
        small = size_B <= self.small_B
        high = small or end is End.HIGH
        ranges = ((lo_B, capacity_B), (0, capacity_B)) if small else ((0, lo_B), (0, capacity_B))
        for lo_B, hi_B in ranges:
            offset_B = self.arena.allocate(size_B, lo_B, hi_B, high=high, tag=owner) if hi_B > lo_B else None
            if offset_B is not None:
                return offset_B
        return None

    def free(self, offset_B: int) -> None:
        self.arena.free(offset_B)

    def retag(self, offset_B: int, owner: int) -> None:
        self.arena.set_tag(offset_B, owner)

    def blocks(self) -> Sequence[Block]:
        return self.arena.blocks()

    def free_adjacent(self, offset_B: int) -> int:
        block = self.arena.find(offset_B)
        assert block is not None
        end_B = offset_B + block.reserved_B
        return sum(hi_B - lo_B for lo_B, hi_B in self.arena.holes() if hi_B == offset_B or lo_B == end_B)

    def slide_for(self, size_B: int, movable: Set[int]) -> list[Move]:
        return self.arena.slide_for(self.reserved_B(size_B), movable)[1]
