"""The true optimum of tiny steps that may offload values, by trying everything: shares no code with any planner.

Dijkstra over states at the ends of runs: how many first runs are done, what is on the device and on the host, and how
much longer each copy and each direction of the link is in progress. One segment, pure recipes, nothing in place.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from lowtide.ir.graph import Graph

Lags = frozenset[tuple[int, float]]  # value -> seconds until its copy has arrived
# First runs done, the device, the host, and seconds until each direction of the link is free.
State = tuple[int, Lags, Lags, float, float]


class OffloadExhaustive:
    """Least seconds of a graph within a budget; None if nothing fits.

    Arguments:
        send_s, fetch_s: per byte.
    """

    def __init__(
        self, graph: Graph, budget_B: int, send_s: float, fetch_s: float, host_budget_B: int | None = None
    ) -> None:
        self.graph, self.budget_B, self.host_budget_B = graph, budget_B, host_budget_B
        self.send_s, self.fetch_s = send_s, fetch_s
        self.size_B = [v.size_B for v in graph.values]
        self.leaving = {v.id for v in graph.values if v.leaves is not None}

    def least_s(self) -> float | None:
        start: State = (0, frozenset(), frozenset(), 0.0, 0.0)
        best, best_s = {start: 0.0}, None
        queue, tie = [(0.0, 0, start)], itertools.count(1)
        while queue:
            now_s, _, state = heapq.heappop(queue)
            if now_s > best[state] or (best_s is not None and now_s >= best_s):
                continue
            if state[0] == len(self.graph.program):
                if self.leaving <= {v for v, _ in state[1]}:
                    end_s = now_s + max(state[3], state[4])
                    best_s = end_s if best_s is None else min(best_s, end_s)
                continue
            for cost_s, after in self._moves(state):
                if now_s + cost_s < best.get(after, float("inf")) - 1e-12:
                    best[after] = now_s + cost_s
                    heapq.heappush(queue, (now_s + cost_s, next(tie), after))
        return best_s

    def _moves(self, state: State) -> Iterator[tuple[float, State]]:
        done, device, host, to_s, back_s = state
        there, copies = dict(device), dict(host)
        for v, lag_s in device:
            if v not in copies and self.size_B[v] and self._fits_in(copies, v):
                arrives_s = max(to_s, lag_s) + self.send_s * self.size_B[v]
                yield 0.0, (done, device, host | {(v, arrives_s)}, arrives_s, back_s)
            if not (lag_s or v in self.leaving):
                wait_s = copies.get(v, 0.0)
                yield wait_s, _later((done, device - {(v, lag_s)}, host, to_s, back_s), wait_s)
        for v, lag_s in host:
            if v not in there and self._live_B(there) + self.size_B[v] <= self.budget_B:
                arrives_s = max(back_s, lag_s) + self.fetch_s * self.size_B[v]
                yield 0.0, (done, device | {(v, arrives_s)}, host, to_s, arrives_s)
            wait_s = max(lag_s, there.get(v, 0.0))
            yield wait_s, _later((done, device, host - {(v, lag_s)}, to_s, back_s), wait_s)
        for position in range(done + 1):
            recipe = self.graph.recipes[self.graph.program[position]]
            if not set(recipe.read_values) <= there.keys():
                continue
            if self._live_B(there) + recipe.trace.peak_B > self.budget_B:
                continue
            took_s = max([there[v] for v in recipe.read_values], default=0.0) + recipe.time_s
            fresh = {(v, 0.0) for v in recipe.outputs if v not in there}
            if position < done and not fresh:
                continue
            after = (max(done, position + 1), device | fresh, host, to_s, back_s)
            yield took_s, _later(after, took_s)

    def _fits_in(self, copies: dict[int, float], value: int) -> bool:
        return self.host_budget_B is None or self._live_B(copies) + self.size_B[value] <= self.host_budget_B

    def _live_B(self, there: dict[int, float]) -> int:
        return sum(self.size_B[v] for v in there)


def _later(state: State, by_s: float) -> State:
    done, device, host, to_s, back_s = state

    def left_s(lag_s: float) -> float:
        return round(max(0.0, lag_s - by_s), 9)

    return (
        done,
        frozenset((v, left_s(lag)) for v, lag in device),
        frozenset((v, left_s(lag)) for v, lag in host),
        left_s(to_s),
        left_s(back_s),
    )
