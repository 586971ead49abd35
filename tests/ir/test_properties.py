"""What the checker accepts, a device carries out: random schedules against the interpreter."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from lowtide.errors import IllegalPlan
from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Fetch, Run, Schedule
from lowtide.ir.sequence import blocks_of
from lowtide.ir.simulate import residencies, simulate
from tests.ir.graphs import graphs
from tests.ir.interpreter import CannotExecute, Choose, Interpreter, Result
from tests.ir.layouts import stacked
from tests.ir.schedules import Writer, damage

SEEDS = st.integers(0, 2**32)


def _execute(graph: Graph, schedule: Schedule, choose: Choose = min) -> tuple[Result, Result, int]:
    interpreter = Interpreter(graph)
    result = interpreter.run(schedule, choose)
    return result, interpreter.truth, result.peak_B


def _assert_same(result: Result, truth: Result) -> None:
    assert result.handed_over == truth.handed_over
    assert result.generator == truth.generator
    assert result.effects == truth.effects


def _orders(seed: int) -> list[Choose]:
    """Copies as late as possible, as early as possible, and at random."""
    random = Random(seed)
    return [
        lambda ready: min(ready, key=lambda queue: (queue != "compute", queue)),
        lambda ready: max(ready, key=lambda queue: (queue != "compute", queue)),
        lambda ready: random.choice(ready),
    ]


@settings(max_examples=50)
@given(graphs())
def test_random_graphs_are_consistent(graph: Graph) -> None:
    check_graph(graph)


@settings(max_examples=200)
@given(graphs(), SEEDS, st.sampled_from([0.0, 0.3, 0.6, 0.9]), st.integers(0, 2))
def test_what_the_checker_accepts_is_executed(graph: Graph, seed: int, greed: float, damages: int) -> None:
    """No missing or overwritten value, the program's contents, and the simulator's bytes, in any order of engines."""
    for attempt in range(10):
        random = Random(f"{seed} {attempt}")
        schedule = Writer(graph, random, greed).write()
        for _ in range(damages):
            schedule = damage(graph, schedule, random) if schedule.steps else schedule
        try:
            check(graph, schedule)
        except IllegalPlan as error:
            event(f"refused: {str(error).split('breaks rule ')[1].split(':')[0]}")
            continue
        event(f"accepted after {damages} damages")
        timeline = simulate(graph, schedule)
        for choose in _orders(seed):
            result, truth, peak_B = _execute(graph, schedule, choose)
            _assert_same(result, truth)
            assert peak_B == timeline.peak_B
        check(graph, schedule, timeline.peak_B)
        if timeline.peak_B:
            with pytest.raises(IllegalPlan, match="'budget'"):
                check(graph, schedule, timeline.peak_B - 1)


@settings(max_examples=100)
@given(graphs(), SEEDS, st.sampled_from([0.3, 0.9]))
def test_what_cannot_be_executed_is_refused(graph: Graph, seed: int, greed: float) -> None:
    for attempt in range(12):
        random = Random(f"{seed} {attempt}")
        schedule = Writer(graph, random, greed).write()
        schedule = damage(graph, schedule, random) if schedule.steps else schedule
        try:
            result, truth, _ = _execute(graph, schedule, _orders(seed)[attempt % 3])
            wrong = result.handed_over != truth.handed_over or result.effects != truth.effects
            wrong = wrong or result.generator != truth.generator
        except CannotExecute:
            wrong = True
        event(f"wrong: {wrong}")
        if wrong:
            with pytest.raises(IllegalPlan):
                check(graph, schedule)


def _is_legal(graph: Graph, schedule: Schedule) -> bool:
    try:
        check(graph, schedule)
    except IllegalPlan:
        return False
    return True


@settings(max_examples=100)
@given(graphs(), SEEDS)
def test_residencies_are_the_live_bytes(graph: Graph, seed: int) -> None:
    """The residencies sum up to what the simulator says is live; stacked, the allocations are a legal layout."""
    schedule = Writer(graph, Random(seed), 0.6).write()
    assume(_is_legal(graph, schedule))
    lifetimes = residencies(graph, schedule)
    for instant in simulate(graph, schedule).instants[1:]:
        before = [r for r in lifetimes if r.start < instant.step <= r.stop]
        through = [r for r in before if r.stop > instant.step]  # without what the last step gave up, or this one drops
        assert sum(r.size_B for r in through) <= instant.live_before_B <= sum(r.size_B for r in before)
    check(graph, schedule, layout=stacked(graph, schedule))


@settings(max_examples=100)
@given(graphs(), SEEDS)
def test_the_sequence_holds_the_live_bytes(graph: Graph, seed: int) -> None:
    """What the code allocates and what the caller brought make up the simulator's live bytes after every step."""
    schedule = Writer(graph, Random(seed), 0.6).write()
    assume(_is_legal(graph, schedule))
    blocks = blocks_of(graph, schedule, small_B=0)
    lifetimes = [s for s in residencies(graph, schedule) if isinstance(schedule.steps[s.start], Run | Fetch)]
    assert sum(s.size_B for s in lifetimes) == sum(b.size_B for b in blocks if b.value is not None and b.size_B)
    for block in blocks:
        assert block.start < block.stop
