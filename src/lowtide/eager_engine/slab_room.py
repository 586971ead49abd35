"""The room of the real runtime: the arena from which torch is served. It allocates nothing itself; kernels do.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, final

from lowtide.device.arena import ALIGNMENT_B, Arena
from lowtide.eager_engine.bodies import Bodies
from lowtide.eager_engine.room import AbstractRoom, End, Move


class Owned(NamedTuple):
    """One block and the value that it holds, or 0."""

    offset_B: int
    requested_B: int
    reserved_B: int
    tag: int


@final
class SlabRoom(AbstractRoom):
    """See the module."""

    def __init__(self, arena: Arena, bodies: Bodies) -> None:
        self._arena = arena
        self._bodies = bodies

    @property
    def capacity_B(self) -> int:
        return self._arena.capacity_B

    @property
    def in_use_B(self) -> int:
        return self._arena.in_use_below(self._arena.capacity_B)

    @property
    def peak_B(self) -> int:
        return self._arena.stats().peak_B

    def reserved_B(self, size_B: int) -> int:
        return max(1, -(-size_B // ALIGNMENT_B)) * ALIGNMENT_B

    def fits(self, size_B: int) -> bool:
        return self.largest_hole_B >= self.reserved_B(size_B)

    @property
    def largest_hole_B(self) -> int:
        """The largest block that would find a place."""
        return max((hi_B - lo_B for lo_B, hi_B in self._arena.holes()), default=0)

    def allocate(self, size_B: int, end: End, owner: int) -> int | None:
        raise NotImplementedError("torch's own allocator serves this room")

    def free(self, offset_B: int) -> None:
        raise NotImplementedError("storages free their own blocks")

    def retag(self, offset_B: int, owner: int) -> None:
        self._arena.own(offset_B, owner)

    def blocks(self) -> Sequence[Owned]:  # type: ignore[override]
        return [Owned(*block) for block in self._arena.owners()]

    def free_beside(self, offset_B: int) -> int:
        end_B = next(block[0] + block[2] for block in self._arena.owners() if block[0] == offset_B)
        return sum(hi_B - lo_B for lo_B, hi_B in self._arena.holes() if hi_B == offset_B or lo_B == end_B)

    def slide_for(self, size_B: int, movable: Set[int]) -> list[Move]:
        """Moves blocks and, unlike rooms of numbers, the bytes in them."""
        before = {tag: (offset_B, size_B) for offset_B, size_B, _, tag in self._arena.owners() if offset_B in movable}
        addresses = {
            offset_B: body.address
            for tag, (offset_B, _) in before.items()
            if (body := self._bodies.of_number(tag)) is not None
        }
        moves, _, _ = self._arena.slide_for(self.reserved_B(size_B), addresses)
        if not moves:
            return []
        after = {tag: offset_B for offset_B, _, _, tag in self._arena.owners() if tag}
        return [(from_B, after[tag], moved_B) for tag, (from_B, moved_B) in before.items() if after[tag] != from_B]
