"""The vocabulary says what real networks need: each example planned by hand, checked, simulated and executed."""

from __future__ import annotations

import pytest

from lowtide.errors import IllegalPlan
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.ir.simulate import Timeline, residencies, simulate
from tests.ir import examples
from tests.ir.interpreter import CannotExecute, Interpreter

B0, B1 = Boundary(0), Boundary(1)


def _carry_out(graph: Graph, *steps: Step) -> Timeline:
    """Checks, executes and simulates; all three agree."""
    schedule = Schedule(steps)
    timeline = simulate(graph, schedule)
    check(graph, schedule, timeline.peak_B)
    interpreter = Interpreter(graph)
    result = interpreter.run(schedule)
    assert result.handed_over == interpreter.truth.handed_over
    assert result.generator == interpreter.truth.generator
    assert result.peak_B == timeline.peak_B
    return timeline


def test_keeping_or_remaking_an_activation() -> None:
    graph = examples.chain()
    kept = _carry_out(graph, B0, Run(0, (2,)), Run(1, (3,)), Drop(2), Run(2, (4,)), B1, Run(3, (6,)))
    assert (kept.peak_B, kept.time_s, kept.peak_step) == (239, 7.5, 6)
    dropped = [B0, Run(0, (2,)), Run(1, (3,)), Drop(2), Run(2, (4,)), Drop(3), B1]
    remade = _carry_out(graph, *dropped, Run(0, (2,)), Run(1, (3,)), Drop(2), Run(3, (6,)))
    assert remade.time_s == 10.5
    assert remade.instants[6].live_after_B == kept.instants[5].live_after_B - 20


def test_a_convolution_is_quick_with_workspace_or_slow_without() -> None:
    graph = examples.convolution()
    quick, slow = (_carry_out(graph, B0, Run(recipe, (2,))) for recipe in (0, 1))
    assert (quick.time_s, quick.peak_B) == (1.0, 36 + 64 + 500 + 64)
    assert (slow.time_s, slow.peak_B) == (3.0, 36 + 64 + 64)


def test_dropout_keeps_a_mask_or_packs_it_or_replays_it() -> None:
    graph = examples.dropout()
    mask = _carry_out(graph, B0, Run(0, (1, 2)), B1, Run(1, (6,)))
    packed = _carry_out(graph, B0, Run(5, (1, 3)), B1, Run(6, (6,)))
    replayed = _carry_out(graph, B0, Run(0, (1, 4)), B1, Run(2, (2,)), Run(1, (6,)))
    saved_B = [t.instants[1].live_after_B - 1600 for t in (mask, packed, replayed)]
    assert saved_B == [200, 25, 16]
    with pytest.raises(IllegalPlan, match="'group'"):
        check(graph, Schedule((B0, Run(5, (1, 3)), B1, Run(4, (2,)), Run(1, (6,)))))


def test_a_packed_mask_may_be_unpacked_for_the_plain_backward() -> None:
    _carry_out(examples.dropout(), B0, Run(0, (1, 2)), Run(3, (3,)), Drop(2), B1, Run(4, (2,)), Drop(3), Run(1, (6,)))


def test_a_fused_loss_never_makes_the_logits() -> None:
    graph = examples.fused_loss()
    plain = _carry_out(graph, B0, Run(0, (2,)), Run(1, (3,)), B1, Run(2, (5,)))
    fused = _carry_out(graph, B0, Run(3, (3,)), B1, Run(4, (5,)))
    assert plain.peak_B > 1000 > fused.peak_B
    with pytest.raises(IllegalPlan, match="'group'"):
        check(graph, Schedule((B0, Run(3, (3,)), Run(0, (2,)), B1, Run(2, (5,)))))


def test_a_relu_in_place_needs_no_second_storage_and_destroys_its_input() -> None:
    graph = examples.in_place()
    apart = _carry_out(graph, B0, Run(0, (1,)), Run(1, (2,)))
    onto = _carry_out(graph, B0, Run(0, (1,)), Run(2, (2,)))
    assert (apart.peak_B, onto.peak_B) == (120, 80)
    lifetimes = residencies(graph, Schedule((B0, Run(0, (1,)), Run(2, (2,)))))
    assert [(s.value, s.start, s.stop) for s in lifetimes] == [(0, 0, 3), (1, 1, 3)]
    for late in (Run(1, ()), Drop(1), Send(1, "host")):
        steps = Schedule((B0, Run(0, (1,)), Run(2, (2,)), late))
        with pytest.raises(IllegalPlan):
            check(graph, steps)
        with pytest.raises(CannotExecute):
            Interpreter(graph).run(steps)


def test_an_update_takes_the_storage_of_the_weight() -> None:
    timeline = _carry_out(examples.update(), B0, Run(0, (3,)), Run(1, (2,)), Drop(3))
    assert timeline.peak_B == 120


def test_a_bundle_hands_a_value_from_part_to_part() -> None:
    _carry_out(examples.bundle(), B0, Run(0, (1,)), Run(1, (2,)), Drop(1), B1, Run(2, (3,)))


def test_offload_and_prefetch() -> None:
    graph = examples.chain()
    timeline = _carry_out(
        graph,
        B0,
        Run(0, (2,)),
        Run(1, (3,)),
        Drop(2),
        Send(3, "host", (2,)),
        Run(2, (4,), (4,)),
        Drop(3),
        B1,
        Fetch(3, "host", (4,)),
        Run(3, (6,), (8,)),
    )
    assert timeline.memory_peaks_B == (("device", 239), ("host", 20))
    assert timeline.instants[7].live_after_B == 100 + 10 + 4


def test_without_its_edge_a_copy_is_refused_and_fails() -> None:
    graph = examples.chain()
    steps = [B0, Run(0, (2,)), Run(1, (3,)), Drop(2), Send(3, "host", (2,)), Run(2, (4,)), Drop(3), B1]
    schedule = Schedule((*steps, Fetch(3, "host", (4,)), Run(3, (6,), (8,))))
    with pytest.raises(IllegalPlan, match="'freed-in-flight'"):
        check(graph, schedule)
    with pytest.raises(CannotExecute, match="poison"):
        Interpreter(graph).run(schedule, lambda ready: min(ready, key=lambda queue: queue != "compute"))
