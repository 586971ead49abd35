"""The allocators that packings are compared with: rounding, splitting, joining, growing."""

from __future__ import annotations

import itertools
import random

import pytest
from benchmarks.planning.allocators import MIB, CachingAllocator, caching_B, events_of, online_best_fit_B

from lowtide.ir.packing import Buffer, Packing
from lowtide.placers.bound import bound_B
from tests.placers.packings import at_random, step_of_training


def reserved_B(expandable: bool, *sizes_B: int) -> int:
    """For allocations that all live at once."""
    return caching_B(Packing(tuple(Buffer(n, 100, size_B) for n, size_B in enumerate(sizes_B))), expandable=expandable)


@pytest.mark.parametrize(
    ("sizes_B", "plain_B", "expandable_B"),
    [
        ((1,), 2 * MIB, 2 * MIB),
        ((MIB, MIB), 2 * MIB, 2 * MIB),
        ((MIB, MIB, 1), 4 * MIB, 4 * MIB),
        ((MIB + 1,), 20 * MIB, 20 * MIB),
        ((8 * MIB, 8 * MIB, 8 * MIB), 40 * MIB, 40 * MIB),
        ((8 * MIB, 8 * MIB, 2 * MIB, 3 * MIB), 40 * MIB, 40 * MIB),
        ((11 * MIB - 1,), 12 * MIB, 20 * MIB),
        ((30 * MIB, 30 * MIB), 60 * MIB, 60 * MIB),
    ],
)
def test_what_a_few_requests_reserve(sizes_B: tuple[int, ...], plain_B: int, expandable_B: int) -> None:
    assert reserved_B(False, *sizes_B) == plain_B
    assert reserved_B(True, *sizes_B) == expandable_B


def test_freed_neighbours_join_and_are_used_again() -> None:
    allocator = CachingAllocator(expandable=False)
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved_B == 20 * MIB
    for number in (0, 2, 1):
        allocator.free(blocks[number])
    assert allocator.allocate(15 * MIB).address == blocks[0].address
    assert allocator.reserved_B == 20 * MIB


def test_segments_do_not_join_unless_they_expand() -> None:
    for expandable, more_B in ((False, 60 * MIB), (True, 20 * MIB)):
        allocator = CachingAllocator(expandable)
        for block in [allocator.allocate(20 * MIB) for _ in range(2)]:
            allocator.free(block)
        allocator.allocate(60 * MIB)
        assert allocator.reserved_B == 40 * MIB + more_B


def test_a_large_block_is_not_split_for_a_remainder_of_a_mebibyte() -> None:
    allocator = CachingAllocator(expandable=False)
    allocator.free(allocator.allocate(20 * MIB))
    assert allocator.allocate(19 * MIB).size_B == 20 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_blocks_in_use_never_meet(expandable: bool) -> None:
    draw = random.Random(1)
    allocator = CachingAllocator(expandable)
    live = []
    for _ in range(2000):
        if live and draw.random() < 0.5:
            allocator.free(live.pop(draw.randrange(len(live))))
        else:
            live.append(allocator.allocate(int(2 ** draw.uniform(4, 25))))
        spans = sorted((b.address, b.address + b.size_B) for b in live)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert sum(b.size_B for b in live) + sum(size_B for pool in allocator.pools.values() for size_B, *_ in pool) == (
        allocator.reserved_B
    )


def test_events_release_before_they_allocate() -> None:
    packing = Packing((Buffer(0, 2, 1), Buffer(2, 3, 1), Buffer(1, 3, 0)))
    assert events_of(packing) == [(True, 0), (False, 0), (True, 1), (False, 1)]


def test_all_of_them_reserve_at_least_what_is_live() -> None:
    for packing in (step_of_training(60), at_random(1, 50)):
        assert online_best_fit_B(packing) >= bound_B(packing)
        assert caching_B(packing, expandable=True) >= bound_B(packing)
        assert caching_B(packing, expandable=False) >= bound_B(packing)
