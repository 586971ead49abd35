"""What a retention means, in plain Python: the readable twin of `src/core/retention.hpp`.

Every gap of a value's life (from production to first use, between uses, after the last) has a number. The value is
available at a stage of the gap iff the last stage before it that produced, recomputed or used the value is at least
that number. One below KEEP is a complement, and says that fetches stand for recomputations. Everything else follows.
Slow and simple on purpose: the kernel is tested against it.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide._core import KEEP
from lowtide.planners.reductions.stages import StageProgram

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Retained:
    """What a retention comes to.

    Arguments:
        recomputations: per stage the stages recomputed before it, in order; the number of stages and a value for its
            fetch.
        sent_B, fetched_B: what goes over the links, without what every plan sends.
        spans: per value its lifetimes, as first and last stage.
        live_B: per stage the most bytes at once.
    """

    recomputations: tuple[tuple[int, ...], ...]
    spans: tuple[Spans, ...]
    live_B: tuple[int, ...]
    compute_ps: int
    sent_B: int
    fetched_B: int


def evaluate(program: StageProgram, retention: Sequence[int]) -> Retained | None:
    """Works out what a retention means.

    Arguments:
        retention: one per gap, in the core's order: the gaps of value 0, of value 1, ...

    Returns: None if something is needed that cannot be recomputed there.

    O(stages * values * recomputations).
    """
    count = len(program.stages)
    last = list(program.producer)  # value -> last stage that produced, recomputed (or fetched) or used it
    retention = _Numbers(program, retention)
    recomputations: list[tuple[int, ...]] = []
    lifetimes: list[list[list[int]]] = [[[program.producer[v], -1]] for v in range(len(program.values))]
    for t in range(count):
        there = [v for v in range(len(program.values)) if program.producer[v] < t]
        fetched = {v for v in there if retention.is_by_fetch(v, t)}
        missing = {v for v in there if last[v] < retention.at(v, t)}
        order = _closure(program, t, missing, fetched)
        if order is None:
            return None
        recomputations.append(tuple(order))
        made = {v for r in order if r < count for v in _outputs(program, r)} - fetched
        made |= {r - count for r in order if r >= count}
        used = {v for r in (*order, t) if r < count for v in program.read_ids[r]}
        for v in made & missing:
            lifetimes[v].append([t, -1])
        for v in used:
            lifetimes[v][-1][1] = t
        for v in made | set(program.read_ids[t]):
            last[v] = t
    spans = tuple(tuple((a, b) for a, b in lifetime if b >= 0) for lifetime in lifetimes)
    live_B = tuple(_live_B(program, t, recomputations, spans) for t in range(count))
    items = [r for order in recomputations for r in order]
    again_ps = sum(program.stages[r].recompute_ps for r in items if r < count)
    copied = [program.graph.values[program.values[r - count]] for r in items if r >= count]
    sent_B = sum(program.movement.send_B(v) for v in set(copied))
    fetched_B = sum(program.movement.fetch_B(v) for v in copied)
    return Retained(tuple(recomputations), spans, live_B, program.time_ps + again_ps, sent_B, fetched_B)


class _Numbers:
    """The number that rules a value at a stage."""

    def __init__(self, program: StageProgram, retention: Sequence[int]) -> None:
        self.program = program
        self.rows: list[Sequence[int]] = []
        at = 0
        for uses in program.uses:
            self.rows.append(retention[at : at + len(uses) + 1])
            at += len(uses) + 1

    def at(self, value: int, stage: int) -> int:
        retention = self._given(value, stage)
        return ~retention if retention < KEEP else retention

    def is_by_fetch(self, value: int, stage: int) -> bool:
        return self._given(value, stage) < KEEP

    def _given(self, value: int, stage: int) -> int:
        uses, producer = self.program.uses[value], self.program.producer[value]
        gap = bisect.bisect_left(uses, stage)
        start = uses[gap - 1] if gap else producer
        retention = self.rows[value][gap]
        if retention != KEEP or start != self.program.lost_from[value]:
            return retention
        by_fetch = self.program.values[value] in self.program.movement.fetchable
        return ~(start + 1) if by_fetch and self.program.stages[producer].recompute_through <= start else start + 1


def _outputs(program: StageProgram, stage: int) -> range:
    first = bisect.bisect_left(program.producer, stage)
    return range(first, first + len(program.stages[stage].outputs))


def _closure(program: StageProgram, t: int, missing: set[int], fetched: set[int]) -> list[int] | None:
    """Stages to recompute before stage t, each after those that it needs; fetches right before the first reader."""
    graph, order, seen = program.graph, list[int](), set[int]()

    def need(stage: int) -> bool:
        for v in program.read_ids[stage]:
            r = program.producer[v]
            if v not in missing or v in fetched or r in seen:
                continue
            seen.add(r)
            here, there = program.stages[t], program.stages[r]
            if t > there.recompute_through or graph.segments[here.segment].part != graph.segments[there.segment].part:
                return False
            if not need(r):
                return False
            order.append(r)
        copies = (len(program.stages) + v for v in program.read_ids[stage] if v in missing & fetched)
        order.extend(c for c in copies if c not in order)
        return True

    return order if need(t) else None


def _live_B(program: StageProgram, t: int, recomputations: Sequence[tuple[int, ...]], spans: tuple[Spans, ...]) -> int:
    """Most bytes at once during stage t: a plain walk over its runs."""
    size_B, count = program.size_B, len(program.stages)
    live = {v for v in range(len(spans)) if any(a < t <= b for a, b in spans[v])}
    now_B = top_B = program.core_fixed_B + sum(size_B[v] for v in live)
    order = (*recomputations[t], t)
    fetched = {r - count for r in order if r >= count}
    wanted = {r - count for later in recomputations[t + 1 :] for r in later if r >= count}
    for i, r in enumerate(order):
        if r >= count:
            live.add(r - count)
            now_B += size_B[r - count]
            top_B = max(top_B, now_B)
            continue
        later = {v for s in order[i + 1 :] if s < count for v in program.read_ids[s]}
        dying = (v for v in program.takeover_ids[r] if v not in later | wanted)
        taken = next((v for v in dying if any(program.opened[t] <= a <= t == b for a, b in spans[v])), None)
        stage = program.stages[r]
        plain_B = stage.trace_B if r == t else stage.recompute_trace_B
        top_B = max(top_B, now_B + (plain_B if taken is None else stage.takeover_trace_B))
        live.discard(-1 if taken is None else taken)
        fresh = {v for v in _outputs(program, r) if any(a == t and (b > t or v in later) for a, b in spans[v])}
        live |= fresh - (fetched if r < t else set())
        now_B = program.core_fixed_B + sum(size_B[v] for v in live)
        top_B = max(top_B, now_B)
        live -= {v for v in program.read_ids[r] if v not in later and any(a <= t == b for a, b in spans[v])}
        now_B = program.core_fixed_B + sum(size_B[v] for v in live)
    return top_B
