"""The kernel against its readable twin, and both against the simulator, on random graphs and random changes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lowtide import _core
from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Role
from lowtide.ir.schedule import Drop, Fetch, Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.reductions.stages import StageProgram, stage_program
from tests.planners.candidates import with_candidates
from tests.planners.readable_retention import evaluate
from tests.planners.tape import Tape, chain, gpt, random_graph, resnet, unet

GRAPHS = [
    *(pytest.param(lambda s=s: random_graph(s, 6 + s % 12, 1 + s % 3), id=f"random{s}") for s in range(40)),
    pytest.param(lambda: chain(5, parts=2), id="bundle"),
    pytest.param(lambda: gpt(2), id="gpt"),
    pytest.param(lambda: unet(2), id="unet"),
    *(
        pytest.param(lambda s=s: with_candidates(random_graph(s, 6 + s % 12, 1 + s % 3)), id=f"candidates{s}")
        for s in range(40)
    ),
    *(pytest.param(lambda s=s: with_candidates(random_graph(s, 14, 2, True)), id=f"mirrored{s}") for s in range(10)),
    pytest.param(lambda: with_candidates(chain(5, parts=2)), id="bundle-candidates"),
    pytest.param(lambda: with_candidates(resnet((1, 1)), ("relu", "add")), id="resnet-candidates"),
]


def random_change(program: _core.Program, dice: random.Random) -> tuple[list[int], list[int]]:
    """A few gaps and new numbers for them."""
    count = len(program.gap_value)
    gaps = [g for g in dice.sample(range(count), min(count, dice.randint(1, 6))) if program.is_free(g)]
    return gaps, [random_retention(program, g, dice) for g in gaps]


def random_retention(program: _core.Program, gap: int, dice: random.Random) -> int:
    """Any that a free gap can have."""
    start, end = program.gap_start(gap), program.gap_end(gap)
    retention = dice.choice([_core.KEEP, start + 1, _core.NEVER, dice.randint(start + 1, max(start + 1, end))])
    fetched = program.can_fetch(gap) and (not program.can_recompute(gap) or dice.random() < 0.5)
    return ~retention if retention != _core.KEEP and fetched else retention


def assert_same(reduced: StageProgram, state: _core.Retention) -> None:
    truth = evaluate(reduced, state.taus.tolist())
    assert truth is not None
    begin, items = (a.tolist() for a in state.recomputations())
    assert truth.recomputations == tuple(tuple(items[a:b]) for a, b in itertools.pairwise(begin))
    begin, items = (a.tolist() for a in state.spans())
    assert truth.spans == tuple(
        tuple(zip(items[a:b:2], items[a + 1 : b : 2], strict=True)) for a, b in itertools.pairwise(begin)
    )
    assert truth.live_B == tuple(state.live_B().tolist())
    assert (truth.compute_ps, truth.sent_B, truth.fetched_B) == (state.compute_ps, state.sent_B, state.fetched_B)
    assert max(truth.live_B) == state.peak_B


@pytest.mark.parametrize("make", GRAPHS)
def test_kernel_oracle_and_simulator_agree(make) -> None:
    graph = make()
    check_graph(graph)
    reduced = stage_program(graph)
    dice = random.Random(1)
    budget_B = reduced.keep_all(0).peak_B // 2
    state = reduced.keep_all(budget_B)
    assert_same(reduced, state)
    for _ in range(30):
        gaps, retention = random_change(reduced.core, dice)
        before = state.taus.copy()
        possible = state.apply(gaps, retention)
        if not possible:
            changed = before.copy()
            changed[gaps] = retention
            assert evaluate(reduced, changed.tolist()) is None
            np.testing.assert_array_equal(state.taus, before)
        elif dice.random() < 0.4:
            state.undo()
            np.testing.assert_array_equal(state.taus, before)
        else:
            state.commit()
        assert_same(reduced, state)
    assert state.is_valid()
    assert state.excess_B == sum(max(0, b - budget_B) for b in state.live_B().tolist())
    assert_lifted(reduced, state)


def assert_lifted(reduced: StageProgram, state: _core.Retention) -> None:
    """The schedule is legal and has the kernel's peak and time; saved generator states stay within the reserve."""
    graph = reduced.graph
    schedule = reduced.lift(state)
    check(graph, schedule)
    timeline = simulate(graph, schedule)
    replays = sum(isinstance(s, Run) and graph.recipes[s.recipe].state is not None
                  and graph.recipes[s.recipe].effect is Effect.PURE for s in schedule.steps)  # fmt: skip
    assert timeline.time_s == pytest.approx(state.time_ps * 1e-12, abs=1e-12 * len(schedule.steps))
    assert state.peak_B <= timeline.peak_B <= state.peak_B + (reduced.reserve_B if replays else 0)
    assert plain_peak_B(reduced, schedule) == state.peak_B


def test_what_dies_in_a_run_is_overwritten_by_it() -> None:
    """Of a chain of rectifiers nothing is kept twice; what the backward still reads is unchanged."""
    graph = resnet((1, 1))
    candidates = with_candidates(graph, ("relu", "add"))
    plain, reduced = stage_program(graph), stage_program(candidates)
    schedule = reduced.lift(reduced.keep_all(0))
    check(candidates, schedule)
    overwritten = {t.value for s in schedule.steps if isinstance(s, Run) for t in candidates.recipes[s.recipe].consumes}
    rectified = {candidates.recipes[r].outputs[0] for r in candidates.program if candidates.recipes[r].op == "relu"}
    assert overwritten
    assert not overwritten & rectified  # the backward reads them
    assert reduced.keep_all(0).peak_B < plain.keep_all(0).peak_B
    assert reduced.keep_all(0).time_ps == plain.keep_all(0).time_ps
    assert (
        simulate(candidates, keep_all_schedule(candidates)).peak_B == plain.keep_all(0).peak_B
    )  # what the network does by itself


def test_what_crosses_a_boundary_is_not_overwritten() -> None:
    """A second backward may want it once more."""
    tape = Tape()
    tape.segment("forward")
    x = tape.given(64)
    a = tape.value(64)
    tape.recipe("f", (x,), (a,), 1e-3)
    tape.segment("backward")
    b, c = tape.value(64), tape.value(64)
    tape.recipe("g", (a,), (b,), 1e-3)
    tape.recipe("h", (b,), (c,), 1e-3)
    tape.leave(c, 1, Role.GRADIENT)
    graph = with_candidates(tape.graph())
    schedule = stage_program(graph).lift(stage_program(graph).keep_all(0))
    overwritten = {t.value for s in schedule.steps if isinstance(s, Run) for t in graph.recipes[s.recipe].consumes}
    assert overwritten == {b}


def plain_peak_B(reduced: StageProgram, schedule: Schedule) -> int:
    """A second, smaller simulation that knows nothing of generator states."""
    graph = reduced.graph
    hidden = {r.state for r in reduced.replays.values()}
    live = {v.id for v in graph.values if v.persistent and v.memory == "device"}
    top_B = 0
    for step in schedule.steps:
        now_B = sum(graph.values[v].size_B for v in live - hidden)
        match step:
            case Run(recipe=recipe) if graph.recipes[recipe].engine == "host":
                pass
            case Run(recipe=recipe, keep=keep):
                top_B = max(top_B, now_B + graph.recipes[recipe].trace.peak_B)
                live -= {t.value for t in graph.recipes[recipe].consumes}
                live |= set(keep)
            case _ if hasattr(step, "segment"):
                live -= {v.id for v in graph.values if v.leaves == step.segment - 1 and not (v.held or v.persistent)}
                live |= {v.id for v in graph.values if v.arrives == step.segment and v.memory == "device"}
                top_B = max(top_B, now_B, sum(graph.values[v].size_B for v in live - hidden))
            case Fetch(value=value):
                live.add(value)
                top_B = max(top_B, now_B + graph.values[value].size_B)
            case Drop(value=value, memory="device"):
                live.remove(value)
    return max(top_B, sum(graph.values[v].size_B for v in live - hidden))


def test_closures_that_grow_too_large_are_rejected() -> None:
    reduced = stage_program(chain(30))
    core = reduced.core
    state = _core.Retention(core, 0, 5)
    gaps = [g for g in range(len(core.gap_value)) if core.is_free(g)]
    before = state.taus.copy()
    assert not state.apply(gaps, [_core.NEVER] * len(gaps))
    np.testing.assert_array_equal(state.taus, before)
    assert state.is_valid()
    assert _core.Retention(core, 0, 500).apply(gaps, [_core.NEVER] * len(gaps))


def test_wrong_arguments_are_refused() -> None:
    reduced = stage_program(chain(4))
    state = reduced.keep_all(0)
    keep = _core.KEEP
    for gaps, retention in (([-1], [keep]), ([0], [-7]), ([10**6], [keep]), ([0, 0], [keep] * 2), ([0], [])):
        with pytest.raises(ValueError, match=r"gap|tau|index"):
            state.apply(gaps, retention)
    with pytest.raises(ValueError, match="one tau per gap"):
        state.assign(np.zeros(1, dtype=np.int32))


def test_long_chains_do_not_exhaust_the_stack() -> None:
    reduced = stage_program(chain(3000, 8))
    core = reduced.core
    gaps = [g for g in range(len(core.gap_value)) if core.is_free(g)]
    state = _core.Retention(core, 0, 10**6)
    retention = state.taus
    for g in gaps:
        retention[g] = core.gap_start(g) + 1
    assert state.assign(retention)
    assert state.is_valid()
