"""The true optimum of tiny graphs, by trying everything: shares no code with any planner.

Dijkstra over states (first runs done, values resident, last recomputation, values from earlier segments). Class: any
recomputation; first runs in program order; one recipe per value, in place or not, or another one outside all groups.
`ordered`: and between two of them recomputations in program order, each at most once. Before a step, any subset of what
is resident may be dropped; dropping late is never worse than early, except that nothing is gained by keeping what does
not fit, so drops are tried just before a run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from lowtide.ir.graph import Effect, Graph
from lowtide.ir.in_place import in_place_candidates

# Position in the plain sequence, resident non-persistent values, place of the last recomputation since the last
# position, and what of the resident values came in an earlier segment: nothing may overwrite that.
State = tuple[int, frozenset[int], int, frozenset[int]]


class Exhaustive:
    """Least time for a graph and a budget; None if nothing fits. Generator states are real values here."""

    def __init__(self, graph: Graph, budget_B: int, *, ordered: bool = False) -> None:
        self.graph, self.budget_B, self.ordered = graph, budget_B, ordered
        self.size_B = [v.size_B for v in graph.values]
        self.persistent = frozenset(v.id for v in graph.values if v.persistent)
        self.persistent_B = sum(self.size_B[v] for v in self.persistent)
        # The plain sequence: ("begin", segment) and ("run", recipe).
        self.sequence: list[tuple[str, int]] = []
        for segment in range(len(graph.segments)):
            self.sequence.append(("begin", segment))
            self.sequence += [("run", r) for r in self._needed() if graph.recipes[r].segment == segment]
        self.sequence.append(("end", len(graph.segments)))
        self.place = {r: place for place, (kind, r) in enumerate(self.sequence) if kind == "run"}
        states = {graph.recipes[r].state: r for r in self.place if graph.recipes[r].state is not None}
        for recipe in graph.recipes:
            if recipe.effect is Effect.PURE and recipe.state in states:
                self.place.setdefault(recipe.id, self.place[states[recipe.state]])
        maker = {v: r for r in self.place for v in graph.recipes[r].outputs}
        grouped = {r for g in graph.groups for o in g.options for r in o.recipes}
        self.stands_for: dict[int, int] = {}  # a recipe outside the program and all groups -> one that makes as much
        for recipe in graph.recipes:
            if (
                recipe.id not in self.place
                and recipe.id not in grouped
                and recipe.outputs[0] in maker
                and not recipe.consumes
            ):
                first = maker[recipe.outputs[0]]
                if recipe.effect is Effect.PURE and set(recipe.outputs) <= set(graph.recipes[first].outputs):
                    self.stands_for[recipe.id] = first
                    self.place[recipe.id] = self.place[first]
        self.candidates = in_place_candidates(graph)
        self.overwritable = {
            graph.recipes[w].consumes[0].value for candidates in self.candidates.values() for w in candidates
        }
        self.segment_at = list(itertools.accumulate(
            (n if kind != "run" else 0 for kind, n in self.sequence), max))  # fmt: skip

    def _needed(self) -> list[int]:
        wanted = {v.id for v in self.graph.values if v.leaves is not None}
        needed = []
        for r in reversed(self.graph.program):
            recipe = self.graph.recipes[r]
            if recipe.effect is not Effect.PURE or wanted & set(recipe.outputs):
                needed.append(r)
                wanted |= set(recipe.read_values)
        return needed[::-1]

    def least_time_s(self) -> float | None:
        start: State = (0, frozenset(), -1, frozenset())
        best = {start: 0.0}
        queue = [(0.0, 0, start)]
        tie = itertools.count(1)
        while queue:
            time_s, _, state = heapq.heappop(queue)
            if time_s > best[state]:
                continue
            if state[0] == len(self.sequence):
                return time_s
            for cost_s, after in self._moves(state):
                if time_s + cost_s < best.get(after, float("inf")):
                    best[after] = time_s + cost_s
                    heapq.heappush(queue, (time_s + cost_s, next(tie), after))
        return None

    def _moves(self, state: State) -> Iterator[tuple[float, State]]:
        position, resident, last, old = state
        segment = self.segment_at[position] - (self.sequence[position][0] != "run")
        pinned = {v for v in resident if self._handed(v, segment)}
        for value in resident - pinned:
            yield 0.0, (position, resident - {value}, last, old - {value})
        kind, number = self.sequence[position]
        if kind == "run":
            yield from self._run(number, (position + 1, resident, -1, old), segment)
        else:
            yield from self._boundary(number, position, resident)
        if segment >= 0:
            done = {r for k, r in self.sequence[:position] if k == "run"}
            for recipe in self.graph.recipes:
                replays = any(self.graph.recipes[r].state == recipe.state for r in done) and recipe.state is not None
                known = self.stands_for.get(recipe.id, recipe.id) in done
                if recipe.effect is Effect.PURE and (known or replays) and not recipe.consumes:
                    place = self.place[recipe.id] if self.ordered else last + 1
                    if place > last:
                        after = (position, resident, place if self.ordered else last, old)
                        yield from self._run(recipe.id, after, segment)

    def _handed(self, value: int, segment: int) -> bool:
        v = self.graph.values[value]
        return v.held and v.leaves is not None and v.leaves < segment

    def _run(self, number: int, after: State, segment: int) -> Iterator[tuple[float, State]]:
        """Runs a recipe, or one in place of it; `after` is the state behind it, but for what it keeps."""
        for candidate in (number, *self.candidates.get(number, ())):
            gone = frozenset(t.value for t in self.graph.recipes[candidate].consumes)
            if not gone & after[3]:
                yield from self._run_as(candidate, after, segment, gone)

    def _run_as(self, number: int, after: State, segment: int, gone: frozenset[int]) -> Iterator[tuple[float, State]]:
        position, resident, last, old = after
        graph, recipe = self.graph, self.graph.recipes[number]
        if graph.segments[recipe.segment].part != graph.segments[segment].part:
            return
        for v in recipe.read_values:
            through = graph.values[v].readable_through
            if v not in resident | self.persistent or (through is not None and segment > through):
                return
        live_B = self.persistent_B + sum(self.size_B[v] for v in resident)
        extra_B = recipe.trace.peak_B
        if recipe.effect is Effect.PURE and recipe.state is not None:
            extra_B += self.size_B[recipe.state]
        if live_B + extra_B > self.budget_B:
            return
        fresh = [v for v in recipe.outputs if v not in resident]
        for count in range(len(fresh) + 1):
            for keep in itertools.combinations(fresh, count):
                saves = recipe.effect is Effect.RANDOM and recipe.state in keep
                if live_B + extra_B + (self.size_B[recipe.state] if saves else 0) <= self.budget_B:
                    yield recipe.time_s, (position, (resident - gone) | set(keep), last, old)

    def _boundary(self, segment: int, position: int, resident: frozenset[int]) -> Iterator[tuple[float, State]]:
        leaving = {v.id for v in self.graph.values if v.leaves == segment - 1 and not v.persistent}
        if not leaving <= resident:
            return
        gone = {v for v in leaving if not self.graph.values[v].held}
        after = resident if segment == len(self.graph.segments) else resident - gone
        after = after | {v.id for v in self.graph.values if v.arrives == segment and not v.persistent}
        if self.persistent_B + sum(self.size_B[v] for v in after) <= self.budget_B:
            yield 0.0, (position + 1, frozenset(after), -1, frozenset(after & self.overwritable))
