"""Bytes and seconds of single steps. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

import pytest

from lowtide.errors import IllegalPlan, PlanError
from lowtide.ir.graph import Effect, Role
from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send
from lowtide.ir.simulate import residencies, simulate
from tests.ir import examples
from tests.ir.sketch import Sketch

B0, B1 = Boundary(0), Boundary(1)
LINKED = Machine(
    "test",
    links=(Link("device", "host", "to_host", 10.0, 0.5), Link("host", "device", "from_host", 20.0, 0.25)),
)


def test_an_empty_schedule_holds_what_persists() -> None:
    timeline = simulate(examples.chain(), Schedule(()))
    assert (timeline.peak_B, timeline.time_s, timeline.peak_step) == (100, 0.0, None)


def test_bytes_of_a_run() -> None:
    instants = simulate(examples.chain(), Schedule((B0, Run(0, (2,)), Drop(1)))).instants
    assert [(m.live_before_B, m.peak_B, m.live_after_B) for m in instants] == [
        (100, 110, 110),
        (110, 160, 130),
        (130, 130, 120),
    ]


def test_workers_and_what_is_not_kept_count_while_the_recipe_runs() -> None:
    sketch = Sketch()
    a, b = sketch.value(10), sketch.value(20)
    sketch.recipe("split", [], [a, b], inner_B=[5], workers_B=7)
    (_, run) = simulate(sketch.build(), Schedule((B0, Run(0, (b,))))).instants
    assert (run.peak_B, run.live_after_B) == (42, 20)


def test_a_generator_state_is_saved_before_and_put_aside_in_a_replay() -> None:
    sketch = Sketch()
    y, state = sketch.value(100), sketch.value(16, Role.GENERATOR)
    first = sketch.recipe("noise", [], [y], effect=Effect.RANDOM, state=state)
    sketch.again(first, effect=Effect.PURE)
    graph = sketch.build()
    without = simulate(graph, Schedule((B0, Run(0, (y,))))).instants[1]
    assert (without.peak_B, without.live_after_B) == (100, 100)
    saved, _, replay = simulate(graph, Schedule((B0, Run(0, (y, state)), Drop(y), Run(1, (y,))))).instants[1:]
    assert (saved.peak_B, saved.live_after_B) == (116, 116)
    assert (replay.live_before_B, replay.peak_B, replay.live_after_B) == (16, 132, 116)


def test_what_leaves_unheld_dies_at_the_boundary_and_what_is_held_stays() -> None:
    graph = examples.fused_loss()
    timeline = simulate(graph, Schedule((B0, Run(3, (3,)), B1, Run(4, (5,)))))
    assert timeline.instants[2].live_after_B == 150 + 4 + 4
    timeline = simulate(examples.dropout(), Schedule((B0, Run(0, (1, 2)), B1, Run(1, (6,)))))
    assert (timeline.instants[1].live_after_B, timeline.instants[2].live_after_B) == (1800, 1800)


def test_copies_overlap_the_steps_issued_after_them() -> None:
    schedule = Schedule((B0, Run(0, (2,)), Send(2, "host", (1,)), Run(1, (3,), (2,)), Run(2, (4,))))
    waiting = simulate(examples.chain(), schedule, LINKED)
    assert [(m.start_s, m.stop_s, m.engine) for m in waiting.instants[1:]] == [
        (0.0, 2.0, "compute"),
        (2.0, 4.5, "to_host"),
        (4.5, 5.5, "compute"),
        (5.5, 6.0, "compute"),
    ]
    schedule = Schedule((B0, Run(0, (2,)), Send(2, "host", (1,)), Run(1, (3,)), Run(2, (4,))))
    overlapped = simulate(examples.chain(), schedule, LINKED)
    assert [m.start_s for m in overlapped.instants] == [0.0, 0.0, 2.0, 2.0, 3.0]
    assert overlapped.time_s == 4.5


def test_a_reader_waits_for_what_is_fetched_and_engines_keep_their_order() -> None:
    schedule = Schedule((B0, Send(1, "host"), Send(0, "host"), Drop(1), Fetch(1, "host", (1,)), Run(0, (2,))))
    timeline = simulate(examples.chain(), schedule, LINKED)
    assert [(m.start_s, m.stop_s) for m in timeline.instants] == [
        (0.0, 0.0),
        (0.0, 1.5),
        (1.5, 12.0),
        (0.0, 0.0),
        (1.5, 2.25),
        (2.25, 4.25),
    ]
    assert timeline.memory_peaks_B == (("device", 160), ("host", 110))


def test_without_a_machine_copies_take_no_time_and_a_missing_link_is_named() -> None:
    schedule = Schedule((B0, Send(1, "host")))
    assert simulate(examples.chain(), schedule).time_s == 0.0
    assert simulate(examples.chain(), schedule, Machine("bare")).time_s == 0.0
    with pytest.raises(PlanError, match="no link from 'device' to 'disk'"):
        simulate(examples.chain(), Schedule((B0, Send(1, "disk"))), LINKED)


@pytest.mark.parametrize("step", [Drop(2), Send(2, "host"), Fetch(2, "host"), Drop(1, "host")])
def test_nonsense_is_refused(step: Drop | Send | Fetch) -> None:
    with pytest.raises(IllegalPlan, match="step 1: value"):
        simulate(examples.chain(), Schedule((B0, step)))


def test_residencies() -> None:
    schedule = Schedule((B0, Run(0, (2,)), Run(1, (3,)), Drop(2), Run(2, (4,)), B1, Run(3, (6,))))
    lifetimes = residencies(examples.chain(), schedule)
    assert [(s.value, s.start, s.stop, s.size_B) for s in lifetimes] == [
        (0, 0, 7, 100),
        (1, 0, 7, 10),
        (2, 1, 3, 20),
        (3, 2, 7, 20),
        (4, 4, 5, 4),
        (5, 5, 7, 4),
        (6, 6, 7, 100),
    ]
