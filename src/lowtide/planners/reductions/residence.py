"""Which values are there when each stage begins, and the fewest recomputations that give that.

Class of schedules: between two first runs, recomputations come in program order, each recipe at most once. What is
there when a stage begins (S) fixes what is recomputed in it (R): what is missing of what the stage reads, or of what is
to be there when the next one begins, and what those need. This is "optimal R given S" of P. Jain et al., "Checkmate",
MLSys 2020, section 5, for values and recipes instead of layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.reductions.stage import ENTRY, Lifetimes
from lowtide.planners.reductions.stages import StageProgram, rows

RESIDENCE_CLASS = (
    "first runs in program order; between two of them recomputations in program order, each recipe at most once; "
    "one implementation per operator, nothing in place"
)
_PASSES = 8  # leaving out recomputations for nothing may make others needless


@dataclass(frozen=True)
class Residence:
    """A plan of the class.

    Arguments:
        recompute_lists: per stage the stages recomputed before it, increasing.
        span_lists: per value its lifetimes, each from the stage that produces it through its last use.
    """

    program: StageProgram
    recompute_lists: tuple[tuple[int, ...], ...]
    span_lists: tuple[tuple[tuple[int, int], ...], ...]

    def recomputations(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The same in flat arrays."""
        return rows(self.recompute_lists)

    def spans(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The same in flat arrays."""
        return rows([stage for span in spans for stage in span] for spans in self.span_lists)

    @cached_property
    def there(self) -> tuple[frozenset[int], ...]:
        """Per stage the values that are there when it begins, and are used before they are dropped."""
        there: list[set[int]] = [set() for _ in self.program.stages]
        for v, spans in enumerate(self.span_lists):
            for start, end in spans:
                for t in range(start + 1, end + 1):
                    there[t].add(v)
        return tuple(frozenset(t) for t in there)

    @property
    def time_ps(self) -> int:
        """Time of all runs."""
        program = self.program
        return program.time_ps + sum(program.stages[k].recompute_ps for again in self.recompute_lists for k in again)


def may_recompute(program: StageProgram, again: int, during: int) -> bool:
    """Whether a stage may be recomputed before the first run of another one."""
    old, new, segments = program.stages[again], program.stages[during], program.graph.segments
    same_part = segments[old.segment].part == segments[new.segment].part
    return again < during <= old.recompute_through and same_part and new.recipe != ENTRY


def last_needs(program: StageProgram) -> tuple[int, ...]:
    """Per value the last stage during which it can be of use, recomputations of its readers included. O(reads)."""
    need = list(program.last_use)
    of_stage = [-1] * len(program.stages)
    readers: list[list[int]] = [[] for _ in need]
    for t, reads in enumerate(program.read_ids):
        for v in reads:
            readers[v].append(t)
    for v in range(len(need) - 1, -1, -1):
        again = (min(of_stage[t], program.stages[t].recompute_through) for t in readers[v])
        need[v] = max(need[v], *again, -1)
        of_stage[program.producer[v]] = max(of_stage[program.producer[v]], need[v])
    return tuple(need)


def of_lifetimes(program: StageProgram, lifetimes: Lifetimes) -> list[set[int]]:
    """Reads off other lifetimes, a retention's say, what is there when each stage begins."""
    begin, items = (a.tolist() for a in lifetimes.spans())
    there: list[set[int]] = [set() for _ in program.stages]
    for v in range(len(program.values)):
        for k in range(begin[v], begin[v + 1], 2):
            for t in range(items[k] + 1, items[k + 1] + 1):
                there[t].add(v)
    return there


def residence(program: StageProgram, to_keep: Sequence[Collection[int]]) -> Residence | None:
    """Finds the fewest recomputations with which the values to keep are there when each stage begins.

    Arguments:
        to_keep: per stage. What cannot be rematerialised later is kept anyway; what nothing can make is not there; what
            is of no use is left out.

    Returns: None if some stage reads what cannot be rematerialised.

    O(stages * values + recomputations * reads) per pass.
    """
    walk = _Walk(program)
    found = walk.follow(to_keep)
    for _ in range(_PASSES):
        if found is None:
            return None
        again = walk.follow(found.there)
        if again is None or again.recompute_lists == found.recompute_lists:
            return found
        found = again
    return found


class _Walk:
    """Follows what is to be kept, stage by stage."""

    def __init__(self, program: StageProgram) -> None:
        self.program = program
        self.need = last_needs(program)
        self.outputs: list[list[int]] = [[] for _ in program.stages]
        for v, t in enumerate(program.producer):
            self.outputs[t].append(v)

    def follow(self, to_keep: Sequence[Collection[int]]) -> Residence | None:
        program, count = self.program, len(self.program.stages)
        recomputations: list[tuple[int, ...]] = []
        spans: list[list[list[int]]] = [[] for _ in program.values]
        there: set[int] = set()
        for t in range(count):
            later = set(to_keep[t + 1]) if t + 1 < count else set()
            again = self._again(t, there, later)
            if again is None:
                return None
            recomputations.append(again)
            fresh = {v for k in again for v in self.outputs[k] if v not in there}
            for v in (*fresh, *self.outputs[t]):
                spans[v].append([t, -1])
            for k in (*again, t):
                for v in program.read_ids[k]:
                    spans[v][-1][1] = t
            there = {v for v in (*there, *fresh, *self.outputs[t]) if self._is_kept(v, t + 1, later)}
        found = tuple(tuple((a, b) for a, b in lifetimes if b >= 0) for lifetimes in spans)
        return Residence(program, tuple(recomputations), found)

    def _is_kept(self, value: int, stage: int, to_keep: set[int]) -> bool:
        """Whether a value is there when a stage begins, given that it could be."""
        program = self.program
        if stage > self.need[value] or program.lost_from[value] == stage - 1:
            return False
        final = stage > program.stages[program.producer[value]].recompute_through
        return value in to_keep or final or program.pinned_from[value] < stage

    def _again(self, t: int, there: set[int], later: set[int]) -> tuple[int, ...] | None:
        """What is recomputed before stage t, increasing; None if it cannot."""
        program = self.program
        must = [v for v in program.read_ids[t] if v not in there]
        also = [v for v in later if v not in there and program.producer[v] < t and self._is_kept(v, t + 1, later)]
        all_of_it = self._closure(t, there, (*must, *also))
        if all_of_it is not None:
            return all_of_it
        possible = [v for v in also if self._closure(t, there, (v,)) is not None]
        return self._closure(t, there, (*must, *possible))

    def _closure(self, t: int, there: set[int], values: Iterable[int]) -> tuple[int, ...] | None:
        program, found = self.program, list[int]()
        heap = [-program.producer[v] for v in values]
        heapq.heapify(heap)
        while heap:
            k = -heapq.heappop(heap)
            if found and found[-1] == k:
                continue
            if not may_recompute(program, k, t):
                return None
            found.append(k)
            for v in program.read_ids[k]:
                if v not in there:
                    heapq.heappush(heap, -program.producer[v])
        return tuple(reversed(found))
