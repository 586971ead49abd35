"""Out of memory only when it must: with blocks that can be moved, only the bytes in use decide."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import event, given
from hypothesis import strategies as st

from lowtide._core import Arena

ALIGNMENT_B = 64
CAPACITY_B = 32 * ALIGNMENT_B


@dataclass(frozen=True)
class Request:
    """An allocation."""

    size_B: int
    high: bool


@dataclass(frozen=True)
class Release:
    """The end of one of the blocks there are, by its age."""

    age: int


TRACES = st.lists(
    st.one_of(
        st.builds(Request, size_B=st.integers(0, CAPACITY_B // 3), high=st.booleans()),
        st.builds(Release, age=st.integers(0, 50)),
    ),
    max_size=60,
)


def rounded(size_B: int) -> int:
    return -(-max(size_B, 1) // ALIGNMENT_B) * ALIGNMENT_B


class Bytes:
    """What the blocks hold, moved as the arena says: each byte is the tag of its block."""

    def __init__(self) -> None:
        self.held = bytearray(CAPACITY_B)

    def write(self, offset_B: int, size_B: int, tag: int) -> None:
        self.held[offset_B : offset_B + size_B] = bytes([tag]) * size_B

    def move(self, moves: list[tuple[int, int, int]]) -> None:
        for from_B, to_B, size_B in moves:
            self.held[to_B : to_B + size_B] = self.held[from_B : from_B + size_B]

    def hold(self, arena: Arena) -> bool:
        return all(
            self.held[b.offset_B : b.offset_B + b.requested_B] == bytes([b.tag]) * b.requested_B for b in arena.blocks()
        )


def offset_of(arena: Arena, tag: int) -> int:
    return next(b.offset_B for b in arena.blocks() if b.tag == tag)


@given(TRACES, st.booleans())
def test_with_relocation_only_the_working_set_decides(trace: list[Request | Release], whole: bool) -> None:
    arena, held, tags = Arena(CAPACITY_B, ALIGNMENT_B), Bytes(), list[int]()
    working_set_B, made = 0, 0
    for step in trace:
        if isinstance(step, Release):
            if tags:
                working_set_B -= rounded(arena.free(offset_of(arena, tags.pop(step.age % len(tags)))))
            continue
        made += 1
        offset_B = arena.allocate(step.size_B, high=step.high, tag=made)
        if offset_B is None:
            moves = arena.compact() if whole else arena.slide_for(step.size_B)[1]
            held.move(moves)
            offset_B = arena.allocate(step.size_B, high=step.high, tag=made)
            event(f"served after moves: {offset_B is not None}")
        fits = working_set_B + rounded(step.size_B) <= CAPACITY_B
        assert (offset_B is not None) == fits
        if offset_B is not None:
            held.write(offset_B, step.size_B, made)
            tags.append(made)
            working_set_B += rounded(step.size_B)
        assert arena.check() == ""
        assert held.hold(arena)
    assert arena.statistics().in_use_B == working_set_B
    assert arena.statistics().high_water_B <= CAPACITY_B


@given(TRACES, st.sets(st.integers(1, 60)), st.integers(0, CAPACITY_B // 2))
def test_sliding_makes_a_hole_exactly_when_compaction_would(
    trace: list[Request | Release], pinned: set[int], need_B: int
) -> None:
    arenas = [Arena(CAPACITY_B, ALIGNMENT_B) for _ in range(2)]
    for arena in arenas:
        tags: list[int] = []
        for made, step in enumerate(trace, start=1):
            if isinstance(step, Release):
                if tags:
                    arena.free(offset_of(arena, tags.pop(step.age % len(tags))))
            elif arena.allocate(step.size_B, high=step.high, tag=made) is not None:
                tags.append(made)
    sliding, compacting = arenas
    movable = {b.offset_B for b in sliding.blocks() if b.tag not in pinned}
    lifetime = {b.tag: b.offset_B for b in sliding.blocks() if b.tag in pinned}
    hole_B, moves = sliding.slide_for(need_B, movable)
    whole = compacting.compact(movable)
    assert (hole_B is not None) == (compacting.statistics().largest_hole_B >= rounded(need_B))
    assert hole_B is not None or not moves
    assert sum(size_B for _, _, size_B in moves) <= sum(size_B for _, _, size_B in whole) or hole_B is None
    for arena in arenas:
        assert arena.check() == ""
        assert {b.tag: b.offset_B for b in arena.blocks() if b.tag in pinned} == lifetime
    if hole_B is not None:
        assert sliding.allocate_at(hole_B, need_B)
