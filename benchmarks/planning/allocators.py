"""What allocators that do not know the future reserve for a sequence of allocations: best fit, and a caching one.

The caching allocator is torch's for CUDA, as it behaves without a limit on memory: requests are rounded up to 512 B;
up to 1 MiB they are served from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, and above from segments of their
own size, rounded up to 2 MiB; freed blocks join their free neighbours in the segment, and are reused best fit. With
expandable segments each of the two pools is one segment that grows at its end.

Needs no torch. Units: `_B` bytes.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from lowtide._core import Arena
from lowtide.ir.packing import Packing

MIB = 2**20
UNIT_B, SMALL_B = 512, MIB
SMALL_SEGMENT_B, LARGE_SEGMENT_B, OWN_SEGMENT_B, SEGMENT_STEP_B = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB


def events_of(packing: Packing) -> list[tuple[bool, int]]:
    """The allocations (True) and releases (False) of a packing without a period, in order, by buffer."""
    events = [(b.start, True, n) for n, b in enumerate(packing.buffers) if b.size_B]
    events += [(b.stop, False, n) for n, b in enumerate(packing.buffers) if b.size_B]
    return [(allocates, number) for _, allocates, number in sorted(events)]


def online_best_fit_B(packing: Packing) -> int:
    """High water of lowtide's own arena without a plan: best fit, in the order of the allocations."""
    total_B = sum(packing.rounded_B(b.size_B) for b in packing.buffers) + packing.alignment_B
    arena = Arena(packing.rounded_B(total_B), packing.alignment_B)
    offsets_B: dict[int, int] = {}
    for allocates, number in events_of(packing):
        if allocates:
            offset_B = arena.allocate(packing.buffers[number].size_B)
            assert offset_B is not None, "it is large enough for everything at once"
            offsets_B[number] = offset_B
        else:
            arena.free(offsets_B.pop(number))
    return arena.statistics().high_water_B


def caching_B(packing: Packing, *, expandable: bool) -> int:
    """What the caching allocator reserves in the end, for the same allocations."""
    allocator = CachingAllocator(expandable)
    blocks: dict[int, Block] = {}
    for allocates, number in events_of(packing):
        if allocates:
            blocks[number] = allocator.allocate(packing.buffers[number].size_B)
        else:
            allocator.free(blocks.pop(number))
    return allocator.reserved_B


@dataclass(eq=False, slots=True)
class Block:
    """A stretch of a segment, in use or free.

    Arguments:
        address: segments lie far from each other.
        before, after: its neighbours in the segment.
    """

    address: int
    size_B: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None


class CachingAllocator:
    """See the module.

    Invariant: `pools` list the free blocks of small and of large requests by size, then address; no two free blocks
    are neighbours.
    """

    def __init__(self, expandable: bool) -> None:
        self.expandable = expandable
        self.reserved_B = 0
        self.pools: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self.last: dict[bool, Block] = {}  # of a pool's expandable segment
        self.next_address = 0

    def allocate(self, size_B: int) -> Block:
        """Serves a request."""
        size_B = -(-size_B // UNIT_B) * UNIT_B
        small = size_B <= SMALL_B
        pool = self.pools[small]
        position = bisect.bisect_left(pool, (size_B, -1))
        if position < len(pool):
            block = pool.pop(position)[2]
        else:
            block = self._grow(size_B, small) if self.expandable else self._segment(size_B, small)
        block.free = False
        rest_B = block.size_B - size_B
        if rest_B >= UNIT_B if small or self.expandable else rest_B > SMALL_B:
            self._split(block, size_B)
        return block

    def free(self, block: Block) -> None:
        """Takes a block back and joins it with its free neighbours."""
        block.free = True
        if block.before is not None and block.before.free:
            self._forget(block.before)
            block = self._joined(block.before, block)
        if block.after is not None and block.after.free:
            self._forget(block.after)
            block = self._joined(block, block.after)
        self._keep(block)

    def _keep(self, block: Block) -> None:
        bisect.insort(self.pools[block.small], (block.size_B, block.address, block))

    def _forget(self, block: Block) -> None:
        pool = self.pools[block.small]
        del pool[bisect.bisect_left(pool, (block.size_B, block.address))]

    def _split(self, block: Block, size_B: int) -> None:
        rest = Block(block.address + size_B, block.size_B - size_B, block.small, True, block, block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size_B = rest, size_B
        if self.last.get(block.small) is block:
            self.last[block.small] = rest
        self._keep(rest)

    def _joined(self, first: Block, second: Block) -> Block:
        """Two free neighbours as one."""
        first.size_B += second.size_B
        first.after = second.after
        if first.after is not None:
            first.after.before = first
        if self.last.get(first.small) is second:
            self.last[first.small] = first
        return first

    def _segment(self, size_B: int, small: bool) -> Block:
        """A fresh segment of a size of its own."""
        if small:
            segment_B = SMALL_SEGMENT_B
        elif size_B < OWN_SEGMENT_B:
            segment_B = LARGE_SEGMENT_B
        else:
            segment_B = -(-size_B // SEGMENT_STEP_B) * SEGMENT_STEP_B
        return self._block(segment_B, small)

    def _grow(self, size_B: int, small: bool) -> Block:
        """The end of the pool's one segment, with as much more as is missing."""
        step_B = SMALL_SEGMENT_B if small else LARGE_SEGMENT_B
        last = self.last.get(small)
        tail = last if last is not None and last.free else None
        missing_B = size_B - (0 if tail is None else tail.size_B)
        more_B = -(-missing_B // step_B) * step_B
        if tail is not None:
            self._forget(tail)
            tail.size_B += more_B
            self.reserved_B += more_B
            return tail
        block = self._block(more_B, small)
        if last is not None:
            block.address = last.address + last.size_B
            block.before, last.after = last, block
        self.last[small] = block
        return block

    def _block(self, size_B: int, small: bool) -> Block:
        self.reserved_B += size_B
        self.next_address += 2**48
        return Block(self.next_address, size_B, small)
