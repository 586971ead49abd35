"""What a retention means, in plain Python: the readable twin of `src/core/retention.hpp`.

Every gap of a value's life (from production to first use, between uses, after the last) has a number tau. The
value is available at a stage of the gap iff the last stage before it that produced, reran or used the value is
at least tau. Everything else follows. Slow and simple on purpose: the kernel is tested against it.

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
    """What a choice of taus comes to.

    Arguments:
        reruns: per stage the stages rerun before it, in order.
        spans: per value its stays, as first and last stage.
        live_B: per stage the most bytes at once.
    """

    reruns: tuple[tuple[int, ...], ...]
    spans: tuple[Spans, ...]
    live_B: tuple[int, ...]
    time_ps: int


def evaluate(program: StageProgram, taus: Sequence[int]) -> Retained | None:
    """Works out what the taus mean.

    Arguments:
        taus: one per gap, in the core's order: the gaps of value 0, of value 1, ...

    Returns: None if something is needed that cannot be rerun there.

    O(stages * values * reruns).
    """
    last = list(program.producer)  # value -> last stage that produced, reran or used it
    tau = _Taus(program, taus)
    reruns: list[tuple[int, ...]] = []
    stays: list[list[list[int]]] = [[[program.producer[v], -1]] for v in range(len(program.values))]
    for t in range(len(program.stages)):
        missing = {v for v in range(len(program.values)) if program.producer[v] < t and last[v] < tau.at(v, t)}
        order = _closure(program, t, missing)
        if order is None:
            return None
        reruns.append(tuple(order))
        made = {v for r in order for v in _outputs(program, r)}
        used = {v for r in (*order, t) for v in program.read_ids[r]}
        for v in made & missing:
            stays[v].append([t, -1])
        for v in used:
            stays[v][-1][1] = t
        for v in made | set(program.read_ids[t]):
            last[v] = t
    spans = tuple(tuple((a, b) for a, b in stay if b >= 0) for stay in stays)
    live_B = tuple(_live_B(program, t, reruns[t], spans) for t in range(len(program.stages)))
    time_ps = program.time_ps + sum(program.stages[r].rerun_ps for order in reruns for r in order)
    return Retained(tuple(reruns), spans, live_B, time_ps)


class _Taus:
    """The tau that rules a value at a stage."""

    def __init__(self, program: StageProgram, taus: Sequence[int]) -> None:
        self.program = program
        self.rows: list[Sequence[int]] = []
        at = 0
        for uses in program.uses:
            self.rows.append(taus[at : at + len(uses) + 1])
            at += len(uses) + 1

    def at(self, value: int, stage: int) -> int:
        uses = self.program.uses[value]
        gap = bisect.bisect_left(uses, stage)
        start = uses[gap - 1] if gap else self.program.producer[value]
        tau = self.rows[value][gap]
        return start + 1 if tau == KEEP and start == self.program.lost_from[value] else tau


def _outputs(program: StageProgram, stage: int) -> range:
    first = bisect.bisect_left(program.producer, stage)
    return range(first, first + len(program.stages[stage].outputs))


def _closure(program: StageProgram, t: int, missing: set[int]) -> list[int] | None:
    """Stages to rerun before stage t, each after those that it needs."""
    graph, order, seen = program.graph, list[int](), set[int]()

    def need(stage: int) -> bool:
        for v in program.read_ids[stage]:
            r = program.producer[v]
            if v not in missing or r in seen:
                continue
            seen.add(r)
            here, there = program.stages[t], program.stages[r]
            if t > there.rerun_through or graph.segments[here.segment].part != graph.segments[there.segment].part:
                return False
            if not need(r):
                return False
            order.append(r)
        return True

    return order if need(t) else None


def _live_B(program: StageProgram, t: int, reruns: tuple[int, ...], spans: tuple[Spans, ...]) -> int:
    """Most bytes at once during stage t: a plain walk over its runs."""
    size_B = program.size_B
    live = {v for v in range(len(spans)) if any(a < t <= b for a, b in spans[v])}
    now_B = top_B = program.core_fixed_B + sum(size_B[v] for v in live)
    order = (*reruns, t)
    for i, r in enumerate(order):
        later = {v for s in order[i + 1 :] for v in program.read_ids[s]}
        dying = (v for v in program.takeover_ids[r] if v not in later)
        taken = next((v for v in dying if any(program.opened[t] <= a <= t == b for a, b in spans[v])), None)
        stage = program.stages[r]
        plain_B = stage.trace_B if r == t else stage.rerun_trace_B
        top_B = max(top_B, now_B + (plain_B if taken is None else stage.takeover_trace_B))
        live.discard(-1 if taken is None else taken)
        fresh = {v for v in _outputs(program, r) if any(a == t and (b > t or v in later) for a, b in spans[v])}
        live |= fresh
        now_B = program.core_fixed_B + sum(size_B[v] for v in live)
        top_B = max(top_B, now_B)
        live -= {v for v in program.read_ids[r] if v not in later and any(a <= t == b for a, b in spans[v])}
        now_B = program.core_fixed_B + sum(size_B[v] for v in live)
    return top_B
