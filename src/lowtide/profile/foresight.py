"""What a step costs at one size, from what it cost at two others: sizes and seconds that change as the size does.

Only for deciding what to try: what is run is measured. Torch-free. Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import math

import msgspec

from lowtide.ir.graph import Graph, MiniTrace, Recipe, Value
from lowtide.profile.measurement import resized

_STEEPEST = 2.0  # attention over a sequence; what looks steeper is the noise of short times


class Sample(msgspec.Struct, frozen=True):
    """One program at one size.

    Arguments:
        size: batch size or sequence length.
        captured: before profiling; profiled: after it.
    """

    size: int
    captured: Graph
    profiled: Graph


def foreseen_graph(graph: Graph | None, size: int, one: Sample, other: Sample) -> Graph:
    """Gives a captured graph the sizes, traces and times that two samples of the same program let expect.

    A quantity follows the straight line or the power law (at most a square) through both samples, whichever is larger.
    Where traces differ in more than their numbers, the larger sample's is taken, in proportion to the size.

    Arguments:
        graph: as captured at `size`; None if it was not: then the sizes of its values are foreseen as well, and their
            geometries are another size's.
        one, other: the same program (`lowtide.ir.likeness.structure`) at two more sizes.

    Returns: the graph as profiling might give it back. O(graph).
    """
    low, high = sorted((one, other), key=lambda s: s.size)
    line = _Line(size, low.size, high.size)
    captured = graph is not None
    graph = high.profiled if graph is None else graph
    values = tuple(_value(line, v, low, high, captured) for v in graph.values)
    recipes = tuple(_recipe(line, r, values, low, high) for r in graph.recipes)
    return msgspec.structs.replace(graph, values=values, recipes=recipes)


class _Line:
    """Reads a quantity at one size off its values at two others."""

    def __init__(self, size: int, low: int, high: int) -> None:
        self.size, self.low, self.high = size, low, high

    def at(self, low: float, high: float) -> float:
        if low == high:
            return low
        straight = low + (high - low) * (self.size - self.low) / (self.high - self.low)
        if low <= 0 or high <= 0:
            return max(0.0, straight)
        exponent = min(_STEEPEST, math.log(high / low) / math.log(self.high / self.low))
        power = high * math.pow(self.size / self.high, exponent)
        return max(0.0, straight, power)

    def at_B(self, low_B: int, high_B: int) -> int:
        return low_B if low_B == high_B else math.ceil(self.at(low_B, high_B))


def _value(line: _Line, value: Value, low: Sample, high: Sample, captured: bool) -> Value:
    """Its captured size, unless running it showed that its storage is another."""
    pairs = [(s.captured.values[value.id].size_B, s.profiled.values[value.id].size_B) for s in (low, high)]
    if captured and all(before_B == real_B for before_B, real_B in pairs):
        return value
    return msgspec.structs.replace(value, size_B=line.at_B(pairs[0][1], pairs[1][1]))


def _recipe(line: _Line, recipe: Recipe, values: tuple[Value, ...], low: Sample, high: Sample) -> Recipe:
    small, large = low.profiled.recipes[recipe.id], high.profiled.recipes[recipe.id]
    trace = _trace(line, small.trace, large.trace)
    events = trace.events
    for value, allocation in zip(recipe.outputs, trace.outputs, strict=False):
        if allocation is not None:
            events = resized(events, allocation, values[value].size_B)
    trace = msgspec.structs.replace(trace, events=events)
    return msgspec.structs.replace(recipe, time_s=line.at(small.time_s, large.time_s), trace=trace)


def _trace(line: _Line, small: MiniTrace, large: MiniTrace) -> MiniTrace:
    alike = len(small.events) == len(large.events) and all(
        (a >= 0 and b >= 0) or a == b for a, b in zip(small.events, large.events, strict=True)
    )
    if alike and small.outputs == large.outputs:
        events = tuple(line.at_B(a, b) if a >= 0 else a for a, b in zip(small.events, large.events, strict=True))
    else:
        events = tuple(math.ceil(e * line.size / line.high) if e >= 0 else e for e in large.events)
    workers_B = line.at_B(small.workers_B, large.workers_B)
    return MiniTrace(events, large.outputs, workers_B, measured=False)
