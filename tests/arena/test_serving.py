"""The arena from Python against a model that looks at every unit, and what a caller gets wrong."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lowtide._core import Arena

UNIT_B = 16
UNITS = 48
CAPACITY_B = UNITS * UNIT_B

BOUNDS = st.integers(-UNIT_B, CAPACITY_B + UNIT_B)


def units(size_B: int) -> int:
    return -(-max(size_B, 1) // UNIT_B)


class Serving(RuleBasedStateMachine):
    """One flag per alignment unit says whether it is taken: as slow as it is plain."""

    offsets = Bundle("offsets")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(CAPACITY_B + UNIT_B - 1, UNIT_B)
        self.taken = [False] * UNITS
        self.sizes: dict[int, int] = {}
        self.tags: dict[int, int] = {}
        self.peak_B = 0

    def holes(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Runs of free units within [lo, hi)."""
        runs, start = [], None
        for i in range(lo, hi + 1):
            free = i < hi and not self.taken[i]
            if free and start is None:
                start = i
            elif not free and start is not None:
                runs.append((start, i))
                start = None
        return runs

    def serve(self, offset_B: int, size_B: int, tag: int) -> None:
        first = offset_B // UNIT_B
        self.taken[first : first + units(size_B)] = [True] * units(size_B)
        self.sizes[offset_B], self.tags[offset_B] = size_B, tag
        self.peak_B = max(self.peak_B, sum(self.taken) * UNIT_B)

    @rule(
        target=offsets, size_B=st.integers(0, 200), lo_B=BOUNDS, hi_B=BOUNDS, high=st.booleans(), tag=st.integers(0, 9)
    )
    def allocate(self, size_B: int, lo_B: int, hi_B: int, high: bool, tag: int) -> object:
        lo = max(0, math.ceil(lo_B / UNIT_B))
        holes = [h for h in self.holes(lo, min(UNITS, hi_B // UNIT_B)) if h[1] - h[0] >= units(size_B)]
        offset_B = self.arena.allocate(size_B, lo_B, hi_B, high=high, tag=tag)
        if not holes:
            assert offset_B is None
            return multiple()
        start, end = min(holes, key=lambda h: (h[1] - h[0], -h[0] if high else h[0]))
        expected = end - units(size_B) if high else start
        assert offset_B == expected * UNIT_B
        self.serve(offset_B, size_B, tag)
        return offset_B

    @rule(target=offsets, unit=st.integers(-1, UNITS), size_B=st.integers(0, 200))
    def allocate_at(self, unit: int, size_B: int) -> object:
        last = unit + units(size_B)
        expected = unit >= 0 and last <= UNITS and not any(self.taken[unit:last])
        assert self.arena.allocate_at(unit * UNIT_B, size_B, tag=3) == expected
        if not expected:
            return multiple()
        self.serve(unit * UNIT_B, size_B, 3)
        return unit * UNIT_B

    @rule(offset_B=consumes(offsets))
    def free(self, offset_B: int) -> None:
        size_B = self.sizes.pop(offset_B)
        del self.tags[offset_B]
        assert self.arena.free(offset_B) == size_B
        first = offset_B // UNIT_B
        self.taken[first : first + units(size_B)] = [False] * units(size_B)

    @rule(offset_B=offsets, tag=st.integers(0, 2**64 - 1))
    def retag(self, offset_B: int, tag: int) -> None:
        assert self.arena.set_tag(offset_B, tag)
        self.tags[offset_B] = tag

    @rule(lo_B=BOUNDS, hi_B=BOUNDS)
    def look(self, lo_B: int, hi_B: int) -> None:
        lo, hi = max(lo_B, 0), min(hi_B, CAPACITY_B)
        within = [o for o, s in self.sizes.items() if o < hi and lo < o + units(s) * UNIT_B and lo < hi]
        assert self.arena.in_use_within(lo_B, hi_B) == (
            sum(self.taken[b // UNIT_B] for b in range(lo, hi)),
            len(within),
        )
        assert [b.offset_B for b in self.arena.blocks(lo_B, hi_B)] == sorted(within)

    @invariant()
    def agrees(self) -> None:
        assert self.arena.check() == ""
        blocks = self.arena.blocks()
        assert {b.offset_B: b.requested_B for b in blocks} == self.sizes
        assert {b.offset_B: b.tag for b in blocks} == self.tags
        assert self.arena.holes() == [(lo * UNIT_B, hi * UNIT_B) for lo, hi in self.holes(0, UNITS)]
        statistics = self.arena.statistics()
        assert statistics.in_use_B == sum(self.taken) * UNIT_B
        assert statistics.peak_in_use_B == self.peak_B
        assert statistics.requested_B == sum(self.sizes.values())
        assert self.peak_B <= statistics.high_water_B <= CAPACITY_B


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=60)


def test_a_window_names_what_to_evict() -> None:
    arena = Arena(640, 64)
    offsets = [arena.allocate(64, tag=tag) for tag in range(10)]
    assert offsets == list(range(0, 640, 64))
    arena.free(128)
    window = arena.cheapest_window(150, {64: 1.0, 192: 3.0, 256: 0.5})
    assert window is not None
    assert (window.lo_B, window.hi_B, window.cost, window.evicted_B) == (128, 320, 3.5, 128)
    assert [b.offset_B for b in window.evicted] == [192, 256]
    assert arena.cheapest_window(300, {64: 1.0, 192: 3.0}) is None, "a block without a cost is pinned"


def test_mistakes_raise() -> None:
    for capacity_B, alignment_B in ((1024, 48), (1024, 0), (10, 64)):
        with pytest.raises(ValueError, match="an arena's"):
            Arena(capacity_B, alignment_B)
    arena = Arena(1024, 64)
    with pytest.raises(ValueError, match="negative"):
        arena.allocate(-1)
    with pytest.raises(ValueError, match="multiple of the alignment"):
        arena.allocate_at(1, 1)
    with pytest.raises(ValueError, match="no block begins"):
        arena.free(0)
    assert arena.allocate(1) == 0
    with pytest.raises(ValueError, match="cost"):
        arena.cheapest_window(1024, {0: float("nan")})
