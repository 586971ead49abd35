"""The order of first runs as a decision: what frees memory runs as soon as it can.

Branches that were written side by side hold all their intermediate values at once; one after the other they do not.
Every recipe stays in its segment, random ones keep their order, what reads a weight runs before its update, and a
segment with a recipe that may do more than it says (an opaque one) keeps its own.

Two list schedules: of the recipes whose inputs are there, one that frees more than it produces comes first, the one
that frees most of those; where none does, the first of the program, or the one whose inputs came last, so that a branch
that was begun goes on before another begins. See R. Sethi, J. D. Ullman, "The generation of optimal code for arithmetic
expressions", J. ACM 17 (1970), for why.

Units: `_B` bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec.structs import replace

from lowtide.ir.graph import Effect, Graph
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.reductions.stages import stage_program

_WORTH = 0.995  # of the bytes in program order: less is worth another order


def base_order(graph: Graph) -> Graph:
    """The graph with its program in a better order, or the graph itself where none was found.

    Better is what lowers the floor or what keeping everything takes by half a percent or more, and raises neither.

    O(recipes * (reads + log recipes)), and a floor per order.
    """
    best, (floor_B, most_B) = graph, _bytes(graph)
    least_floor_B, least_most_B = _WORTH * floor_B, _WORTH * most_B
    for deep in (False, True):
        order = tuple(_ordered(graph, deep))
        if order == graph.program:
            continue
        other = replace(graph, program=order)
        other_floor_B, other_most_B = _bytes(other)
        worse = other_floor_B > floor_B or other_most_B > most_B
        if not worse and (other_floor_B < least_floor_B or other_most_B < least_most_B):
            best, least_floor_B, least_most_B = other, min(least_floor_B, other_floor_B), other_most_B
    return best


def _bytes(graph: Graph) -> tuple[int, int]:
    program = stage_program(graph)
    return op_floor(program).floor_B, program.keep_all(0).peak_B


def _ordered(graph: Graph, deep: bool) -> list[int]:
    order: list[int] = []
    readers_left = [0] * len(graph.values)
    for r in graph.program:
        for v in graph.recipes[r].read_values:
            readers_left[v] += 1
    for segment in range(len(graph.segments)):
        own = [r for r in graph.program if graph.recipes[r].segment == segment]
        order += _Segment(graph, own, readers_left, deep).run()
    return order


class _Segment:
    """One segment in progress.

    Invariant: `waiting[r]` counts the recipes before which r cannot run; `ready` holds those that wait for none.
    """

    def __init__(self, graph: Graph, own: Sequence[int], readers_left: list[int], deep: bool) -> None:
        self.graph, self.own, self.readers_left, self.deep = graph, own, readers_left, deep
        self.place = {r: i for i, r in enumerate(own)}
        self.last = dict.fromkeys(own, 0)  # recipe -> when the last of what it reads came
        self.followers: dict[int, list[int]] = {r: [] for r in own}
        self.waiting: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        producer = {v: r for r in own for v in graph.recipes[r].outputs}
        overwriting = {t.value: r for r in own for t in graph.recipes[r].consumes}
        earlier: dict[int, set[int]] = {r: set() for r in overwriting.values()}  # who reads what they overwrite
        for r in own:
            for v in graph.recipes[r].read_values:
                if overwriting.get(v, r) != r:
                    earlier[overwriting[v]].add(r)
        last_random: int | None = None
        for r in own:
            recipe = graph.recipes[r]
            before = {producer[v] for v in recipe.read_values if v in producer} | earlier.get(r, set())
            if recipe.effect is not Effect.PURE:
                before |= set() if last_random is None else {last_random}
                last_random = r
            self.waiting[r] = len(before)
            for b in before:
                self.followers[b].append(r)
            for v in recipe.read_values:
                self.readers.setdefault(v, []).append(r)

    def run(self) -> list[int]:
        if any(self.graph.recipes[r].effect is Effect.OPAQUE for r in self.own):
            self._use_up(self.own)
            return list(self.own)
        order: list[int] = []
        ready = [self._entry(r) for r in self.own if self.waiting[r] == 0]
        heapq.heapify(ready)
        done: set[int] = set()
        while ready:
            entry = heapq.heappop(ready)
            r = entry[-1]
            if r in done:
                continue
            done.add(r)
            order.append(r)
            fresh = {f for f in self.followers[r] if self._arrived(f, len(order))}
            # Whoever is the last reader now frees more than when it was put there.
            fresh |= {o for v in self._use_up([r]) for o in self.readers.get(v, ()) if self.waiting[o] == 0}
            for f in fresh - done:
                heapq.heappush(ready, self._entry(f))
        return order

    def _arrived(self, recipe: int, now: int) -> bool:
        self.waiting[recipe] -= 1
        self.last[recipe] = now
        return self.waiting[recipe] == 0

    def _use_up(self, recipes: Sequence[int]) -> list[int]:
        """Counts reads; returns the values that only one reader is left for."""
        last: list[int] = []
        for r in recipes:
            for v in self.graph.recipes[r].read_values:
                self.readers_left[v] -= 1
                if self.readers_left[v] == 1:
                    last.append(v)
        return last

    def _entry(self, recipe: int) -> tuple[int, int, int, int]:
        """What sorts first runs first."""
        more_B = self._more_B(recipe)
        if more_B < 0:
            return (0, more_B, self.place[recipe], recipe)
        return (1, -self.last[recipe] if self.deep else 0, self.place[recipe], recipe)

    def _more_B(self, recipe: int) -> int:
        """Bytes that are live after a run, less those before it."""
        values = self.graph.values
        more_B = sum(values[v].size_B for v in self.graph.recipes[recipe].outputs)
        for v in self.graph.recipes[recipe].read_values:
            value = values[v]
            if self.readers_left[v] == 1 and value.leaves is None and not value.persistent:
                more_B -= value.size_B
        return more_B
