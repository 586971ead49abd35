"""What a program costs at a third size, from two: exact where things grow in proportion, never less than a line."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Value
from lowtide.profile.foresight import Sample, foreseen_graph


def program(size: int, scratch_B: int, time_s: float, *, more: bool = False) -> Graph:
    """One operator with a weight, an output that grows, and scratch memory inside."""
    values = (
        Value(0, "weight", 640, Role.PARAMETER, arrives=0, persistent=True),
        Value(1, "x", 64 * size, Role.INPUT, arrives=0, persistent=True),
        Value(2, "y", 32 * size, Role.OUTPUT, leaves=0),
    )
    events = (scratch_B, 32 * size, -1) if not more else (scratch_B, 7, -2, 32 * size, -1)
    trace = MiniTrace(events, (2 if more else 1,), workers_B=size, measured=True)
    return Graph(values, (Recipe(0, "aten.mm.default", (2,), trace=trace, time_s=time_s),), (0,), (Segment("all"),))


def sample(size: int, scratch_B: int, time_s: float, *, more: bool = False) -> Sample:
    graph = program(size, scratch_B, time_s, more=more)
    return Sample(size, graph, graph)


def test_what_grows_in_proportion_is_foreseen_exactly() -> None:
    known = sample(4, 100 + 40, 4e-3), sample(16, 100 + 160, 16e-3)
    for size in (8, 64, 3):
        for graph in (program(size, 0, 0.0), None):
            foreseen = foreseen_graph(graph, size, *reversed(known))
            assert [v.size_B for v in foreseen.values] == [640, 64 * size, 32 * size]
            (recipe,) = foreseen.recipes
            assert recipe.trace.events[1] == 32 * size
            assert recipe.trace.events[0] >= 100 + 10 * size
            assert recipe.trace.workers_B == size
            assert not recipe.trace.measured
            assert recipe.time_s == pytest.approx(size * 1e-3)


def test_squares_are_met_and_the_noise_of_short_times_is_not_blown_up() -> None:
    foreseen = foreseen_graph(None, 64, sample(4, 16, 1e-9), sample(8, 64, 1e-3))
    assert foreseen.recipes[0].trace.events[0] == 64 * 64
    assert foreseen.recipes[0].time_s <= 64e-3
    shrinking = foreseen_graph(None, 64, sample(4, 64, 2e-3), sample(8, 16, 1e-3))
    assert 0 <= shrinking.recipes[0].trace.events[0] <= 16


def test_traces_that_differ_are_taken_from_the_larger_sample() -> None:
    foreseen = foreseen_graph(program(32, 0, 0.0), 32, sample(4, 10, 1e-3), sample(16, 10, 4e-3, more=True))
    assert foreseen.recipes[0].trace.events == (20, 14, -2, 1024, -1)


def test_a_storage_that_is_larger_than_it_looks_is_foreseen_so() -> None:
    def padded(size: int) -> Sample:
        known = sample(size, 0, 1e-3)
        values = (*known.profiled.values[:2], msgspec.structs.replace(known.profiled.values[2], size_B=48 * size))
        return Sample(size, known.captured, msgspec.structs.replace(known.profiled, values=values))

    foreseen = foreseen_graph(program(8, 0, 0.0), 8, padded(2), padded(4))
    assert foreseen.values[2].size_B == 48 * 8
    assert foreseen.recipes[0].trace.events[1] == 48 * 8
