"""The true optimum of tiny graphs of one segment in which values are offloaded at a price, by trying everything.

Dijkstra over states (runs done, values on the device, values sent): shares no code with any planner. Class: any
recomputation and any fetches; first runs in program order. Bytes are counted as if copies took no time, and generator
states as if they were values; nothing is opaque about a random recipe but that it runs once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator

from lowtide.ir.graph import Effect, Graph, Recipe

SEND_ps_per_B, FETCH_ps_per_B = 2e4, 4e4

State = tuple[int, frozenset[int], frozenset[int]]


class OffloadOptions:
    """Least time with prices; None if nothing fits."""

    def __init__(self, graph: Graph, budget_B: int, movable: Collection[int]) -> None:
        self.graph, self.budget_B, self.movable = graph, budget_B, frozenset(movable)
        self.size_B = [v.size_B for v in graph.values]
        self.persistent = frozenset(v.id for v in graph.values if v.persistent)
        self.leaving = frozenset(v.id for v in graph.values if v.leaves is not None) - self.persistent
        self.program = self._needed()

    def _needed(self) -> list[Recipe]:
        wanted, needed = set(self.leaving), list[Recipe]()
        for recipe in (self.graph.recipes[r] for r in reversed(self.graph.program)):
            if recipe.effect is not Effect.PURE or wanted & set(recipe.outputs):
                needed.append(recipe)
                wanted |= set(recipe.read_values)
        return needed[::-1]

    def least_ps(self) -> float | None:
        given = frozenset(v.id for v in self.graph.values if v.arrives is not None) - self.persistent
        start: State = (0, given, frozenset())
        best, queue, tie = {start: 0.0}, [(0.0, 0, start)], itertools.count(1)
        while queue:
            time_ps, _, state = heapq.heappop(queue)
            if time_ps > best[state]:
                continue
            if state[0] == len(self.program) and self.leaving <= state[1]:
                return time_ps
            for cost_ps, after in self._moves(state):
                if time_ps + cost_ps < best.get(after, float("inf")):
                    best[after] = time_ps + cost_ps
                    heapq.heappush(queue, (time_ps + cost_ps, next(tie), after))
        return None

    def _moves(self, state: State) -> Iterator[tuple[float, State]]:
        done, there, sent = state
        for v in there:
            yield 0.0, (done, there - {v}, sent)
            if v in self.movable and v not in sent:
                yield self.size_B[v] * SEND_ps_per_B, (done, there, sent | {v})
        for v in sent - there:
            if self._live_B(there) + self.size_B[v] <= self.budget_B:
                yield self.size_B[v] * FETCH_ps_per_B, (done, there | {v}, sent)
        if done < len(self.program):
            yield from self._run(self.program[done], (done + 1, there, sent))
        ran = self.program[:done]
        for recipe in self.graph.recipes:
            replays = any(r.state == recipe.state for r in ran) and recipe.state is not None
            if recipe.effect is Effect.PURE and (recipe in ran or replays):
                yield from self._run(recipe, state)

    def _live_B(self, there: frozenset[int]) -> int:
        return sum(self.size_B[v] for v in there | self.persistent)

    def _run(self, recipe: Recipe, after: State) -> Iterator[tuple[float, State]]:
        done, there, sent = after
        if not set(recipe.read_values) <= there | self.persistent:
            return
        extra_B = recipe.trace.peak_B
        if recipe.effect is Effect.PURE and recipe.state is not None:
            extra_B += self.size_B[recipe.state]
        fresh = frozenset(recipe.outputs) - there
        for keep in itertools.chain.from_iterable(itertools.combinations(fresh, k) for k in range(len(fresh) + 1)):
            saved_B = self.size_B[recipe.state] if recipe.effect is Effect.RANDOM and recipe.state in keep else 0
            if self._live_B(there) + extra_B + saved_B <= self.budget_B:
                yield recipe.time_s * 1e12, (done, there | set(keep), sent)
