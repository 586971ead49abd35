"""A forward cut into links at any of its stages, and what the backward asks of each link.

Any place between two stages of a forward can be a cut; what CROSSES it are the values that the stages before it produce
and stages behind it read. A value may cross many cuts (a mask, a skip, the features of a dense block), so a chain needs
no stage through which everything leads. Of all places those are cuts where little crosses, measured by what the links
on both sides produce.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lowtide._core import KEEP, NEVER
from lowtide.planners.chain.forward import Forward, Linked, forwards
from lowtide.planners.reductions.residence import last_needs
from lowtide.planners.reductions.stages import GapNumbers, StageProgram


@dataclass(frozen=True)
class Links(Linked):
    """A forward cut where little crosses.

    Arguments:
        again: values of the forward that are dropped and rematerialised. Others are kept: those that nothing can
            rematerialise for as long as they may be needed, what the caller holds, and what is too small to matter.
    """

    again: frozenset[int]

    @cached_property
    def last_reader(self) -> dict[int, int]:
        """Per value that can be rematerialised the last link that reads it; its own where none does."""
        last = {v: self.link_of[self.program.producer[v]] for v in sorted(self.again)}
        for t, k in self.link_of.items():
            for v in self.program.read_ids[t]:
                if v in last:
                    last[v] = max(last[v], k)
        return last

    @cached_property
    def crossing(self) -> tuple[tuple[int, ...], ...]:
        """Per link the values that cross the cut behind it."""
        crossing: list[list[int]] = [[] for _ in self.links]
        for v, last in self.last_reader.items():
            for k in range(self.link_of[self.program.producer[v]], last):
                crossing[k].append(v)
        return tuple(tuple(c) for c in crossing)

    @cached_property
    def inner(self) -> tuple[tuple[int, ...], ...]:
        """Per link the values that cross no cut."""
        inner: list[list[int]] = [[] for _ in self.links]
        for v, last in self.last_reader.items():
            if self.link_of[self.program.producer[v]] == last:
                inner[last].append(v)
        return tuple(tuple(i) for i in inner)

    @cached_property
    def later(self) -> tuple[tuple[int, ...], ...]:
        """Per link the inner values that the backward reads."""
        last_use, turn = self.program.last_use, self.half.turn
        return tuple(tuple(v for v in inner if last_use[v] >= turn) for inner in self.inner)

    @cached_property
    def backward_of(self) -> tuple[int, ...]:
        """Per stage from the turn on the link that goes backward then: the links come last first. O(reads).

        What reads nothing of the forward belongs to the link before it, so that nothing is rematerialised too early.
        """
        link, found = 0, list[int | None]()
        for t in range(len(self.program.stages) - 1, self.half.turn - 1, -1):
            origins = self._behind(t)
            link = max(link, *origins) if origins else link
            found.append(link if origins else None)
        links, link = list[int](), len(self.links) - 1
        for own in reversed(found):
            link = link if own is None else own
            links.append(link)
        return tuple(links)

    def _behind(self, stage: int) -> list[int]:
        """Per value of the forward that a stage reads, the first link that it can go backward with."""
        program = self.program
        if program.stages[stage].recipe < 0:
            return []  # an exit reads for the caller
        read = (v for v in program.read_ids[stage] if v in self.last_reader)
        # Who reads what crosses a cut goes backward with a link behind it.
        origins = ((self.link_of[program.producer[v]], self.last_reader[v]) for v in read)
        return [origin + (last > origin) for origin, last in origins]

    @cached_property
    def turn_of(self) -> tuple[int, ...]:
        """Per link the stage with which the backward of it, or of an earlier one, begins."""
        turns = [len(self.program.stages) - 1] * len(self.links)
        for place in range(len(self.backward_of) - 1, -1, -1):
            turns[self.backward_of[place]] = self.half.turn + place
        for k in range(1, len(turns)):
            turns[k] = min(turns[k], turns[k - 1])
        return tuple(turns)

    @cached_property
    def gaps(self) -> dict[int, tuple[int, int]]:
        """Per value that can be dropped between forward and backward its gap there, and the stage that begins it."""
        core, turn = self.program.core, self.half.turn
        gaps = {v: core.gap_at(v, turn) for v in self.last_reader}
        return {v: (gap, core.gap_start(gap)) for v, gap in gaps.items() if core.is_free(gap)}

    def retention(self, when: Mapping[int, int]) -> GapNumbers:
        """Writes down from which stage on values are kept again, or `KEEP`. Others are kept. O(values)."""
        retention = np.full(len(self.program.core.gap_value), KEEP, dtype=np.int32)
        for v, since in when.items():
            if since != KEEP and v in self.gaps:
                gap, start = self.gaps[v]
                retention[gap] = max(since, start + 1)
        return retention


def links_of(program: StageProgram, most: int, small_B: int = 0) -> tuple[Links, ...]:
    """Cuts the forward of every part that has a backward.

    Arguments:
        most: links per forward.
        small_B: so many bytes, in all, of the smallest values of a forward are kept.

    O(edges + stages * log stages).
    """
    return tuple(_cut(half, most, small_B) for half in forwards(program) if half.ancestry)


def _cut(half: Forward, most: int, small_B: int) -> Links:
    program, order = half.program, half.ancestry
    again = _worth_dropping(half, small_B)
    brings_B = [sum(program.size_B[v] for v in half.outputs[t] if v in again) for t in order]
    kept = _best_cuts(brings_B, _crossing_B(program, order, again), most)
    links: list[tuple[int, ...]] = []
    first = 0
    for cut in [*kept, len(order) - 1]:
        links.append(order[first : cut + 1])
        first = cut + 1
    return Links(half, tuple(links), again)


def _worth_dropping(half: Forward, small_B: int) -> frozenset[int]:
    program, needs = half.program, last_needs(half.program)
    found = [
        v
        for t in half.ancestry
        for v in half.outputs[t]
        if program.stages[t].recompute_through >= needs[v] and program.pinned_from[v] == NEVER
    ]
    found.sort(key=lambda v: (program.size_B[v], v))
    small = 0
    while small < len(found) and program.size_B[found[small]] <= small_B:
        small_B -= program.size_B[found[small]]
        small += 1
    return frozenset(found[small:])


def _crossing_B(program: StageProgram, order: tuple[int, ...], again: frozenset[int]) -> list[int]:
    """Per stage but the last the bytes that cross the cut behind it."""
    place = {t: p for p, t in enumerate(order)}
    last: Mapping[int, int] = {v: p for p, t in enumerate(order) for v in program.read_ids[t] if v in again}
    steps_B = [0] * (len(order) + 1)
    for v, p in last.items():
        steps_B[place[program.producer[v]]] += program.size_B[v]
        steps_B[p] -= program.size_B[v]
    crossing_B, now_B = [], 0
    for step_B in steps_B[: len(order) - 1]:
        now_B += step_B
        crossing_B.append(now_B)
    return crossing_B


def _best_cuts(brings_B: list[int], crossing_B: list[int], most: int) -> list[int]:
    """Takes away the cut where most crosses, for what the links on both sides produce, until few enough are left."""
    count = len(crossing_B)
    before, after = list(range(-1, count - 1)), list(range(1, count + 1))  # neighbouring cuts
    sums_B = [0]
    for b in brings_B:
        sums_B.append(sums_B[-1] + b)

    def price(cut: int) -> float:
        both_B = 1 + sums_B[after[cut] + 1 if after[cut] < count else -1] - sums_B[before[cut] + 1]
        return -crossing_B[cut] / both_B

    heap = [(price(cut), cut) for cut in range(count)]
    heapq.heapify(heap)
    gone, left = [False] * count, count
    while left >= most and heap:
        dear, cut = heapq.heappop(heap)
        if gone[cut]:
            continue
        if dear != price(cut):
            heapq.heappush(heap, (price(cut), cut))
            continue
        gone[cut] = True
        left -= 1
        if before[cut] >= 0:
            after[before[cut]] = after[cut]
        if after[cut] < count:
            before[after[cut]] = before[cut]
    return [cut for cut in range(count) if not gone[cut]]
