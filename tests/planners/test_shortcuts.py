"""Recomputations that are cheaper than first runs, because a small result of the first run is still there."""

from __future__ import annotations

import pytest

from lowtide.ir.check import check
from lowtide.ir.graph import Graph, Role
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import Drop, Run
from lowtide.ir.simulate import simulate
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.keep_all import KeepAll, keep_all_schedule
from lowtide.planners.portfolio import portfolio
from lowtide.planners.reductions.hidden_values import find_shortcuts
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.smallest import smallest_budget
from lowtide.planners.start import read_back
from tests.planners.brute_force import Exhaustive
from tests.planners.tape import Tape

BIG_B, SMALL_B = 4096, 64
CHEAP_s, DEAR_s = 1e-3, 8e-3


def normed(layers: int = 2) -> Graph:
    """x -> (copy a buffer, normalise, updating it, rectify) * layers, and a backward that reads all of it."""
    tape = Tape("normed")
    tape.segment("forward")
    x = tape.given(BIG_B)
    saved = []
    for _ in range(layers):
        buffer = tape.given(SMALL_B, Role.BUFFER, persistent=True)
        copy, y, mean, updated, z = (tape.value(b) for b in (SMALL_B, BIG_B, SMALL_B, SMALL_B, BIG_B))
        tape.recipe("clone", (buffer,), (copy,), 1e-4)
        tape.recipe("norm", (x, copy), (y, mean, updated), DEAR_s)
        tape.recipe("apply", (x, mean), (y,), CHEAP_s, 3 * SMALL_B, in_program=False)
        tape.recipe("relu", (y,), (z,), 2e-3)
        tape.leave(updated, 0, Role.UPDATE)
        saved.append((x, y, mean, z))
        x = z
    loss = tape.value(4)
    tape.recipe("loss", (x,), (loss,), 1e-3)
    tape.leave(loss, 0, Role.OUTPUT)
    back = tape.segment("backward")
    gradient = tape.given(4, Role.TANGENT, arrives=back)
    for before, y, mean, z in reversed(saved):
        through, down, weight = tape.value(BIG_B), tape.value(BIG_B), tape.value(SMALL_B)
        tape.recipe("relu_backward", (gradient, y, z), (through,), 2e-3)
        tape.recipe("norm_backward", (through, before, mean), (down, weight), 8e-3)
        tape.leave(weight, back, Role.GRADIENT)
        gradient = down
    tape.leave(gradient, back, Role.GRADIENT)
    return tape.graph()


def runs(graph: Graph, steps: tuple[object, ...]) -> list[str]:
    return [graph.recipes[s.recipe].op for s in steps if isinstance(s, Run)]


def test_only_what_is_cheaper_and_makes_the_large_part_is_a_shortcut() -> None:
    graph = normed(1)
    every = range(len(graph.recipes))
    assert [s.recipe for s in find_shortcuts(graph, graph.program, every).values()] == [2]
    assert not find_shortcuts(graph, graph.program, set(every) - {2})
    tape = Tape()
    tape.segment("forward")
    x, y, small = tape.given(BIG_B), tape.value(BIG_B), tape.value(BIG_B // 2)
    tape.recipe("norm", (x,), (y, small), DEAR_s)
    tape.recipe("apply", (x, small), (y,), CHEAP_s, in_program=False)
    assert not find_shortcuts(tape.graph(), (0,), {0, 1})  # what has to be kept for it is not small


def test_keeping_everything_takes_what_the_schedule_says() -> None:
    graph = normed()
    outcome = KeepAll().solve(Problem(graph, 10**9))
    assert outcome.schedule is not None
    check(graph, outcome.schedule, outcome.stats["keep_all_peak_B"])
    assert simulate(graph, outcome.schedule).peak_B == outcome.stats["keep_all_peak_B"]
    assert runs(graph, outcome.schedule.steps) == [graph.recipes[r].op for r in graph.program]
    again = KeepAll().solve(Problem(graph, outcome.stats["keep_all_peak_B"]))
    assert again.schedule == outcome.schedule


@pytest.mark.parametrize("layers", [1, 2])
def test_plans_are_the_best_and_bounds_hold(layers: int) -> None:
    graph = normed(layers)
    keep_all_B = simulate(graph, keep_all_schedule(graph)).peak_B
    floor_B = op_floor(stage_program(graph)).floor_B
    short = False
    for budget_B in range(floor_B - 256, keep_all_B + 1, 1024 if layers == 1 else 5 * SMALL_B * 8):
        best_s = Exhaustive(graph, budget_B).least_time_s()
        outcome = portfolio(Problem(graph, budget_B, work=4000, seed=1))
        if best_s is None:
            assert outcome.schedule is None
            continue
        assert outcome.bound_s <= best_s * (1 + 1e-9)
        assert floor_B <= budget_B
        if outcome.schedule is not None:
            check(graph, outcome.schedule, budget_B)
            assert simulate(graph, outcome.schedule).time_s >= best_s * (1 - 1e-9)
            ran = runs(graph, outcome.schedule.steps)
            short = short or "apply" in ran
            assert ran.count("norm") == layers
    assert short or layers == 1
    smallest_B = smallest_budget(Problem(graph, 0))
    assert smallest_B is not None
    assert portfolio(Problem(graph, smallest_B, work=4000, seed=1)).schedule is not None


def test_statistics_are_kept_until_their_last_reader_and_a_plan_is_read_back() -> None:
    graph = normed()
    smallest_B = smallest_budget(Problem(graph, 0))
    assert smallest_B is not None
    schedule = portfolio(Problem(graph, smallest_B, work=4000, seed=1)).schedule
    assert schedule is not None
    program = stage_program(graph)
    assert "apply" in runs(graph, schedule.steps)
    for shortcut in program.shortcuts.values():
        mean = next(v for v in graph.recipes[shortcut.recipe].read_values if v in shortcut.hidden)
        reads = [i for i, s in enumerate(schedule.steps) if isinstance(s, Run) and mean in _reads(graph, s)]
        assert next(i for i, s in enumerate(schedule.steps) if s == Drop(mean)) > reads[-1]
    state = program.keep_all(0)
    assert state.assign(read_back(program, schedule))
    assert program.lift(state) == schedule


def _reads(graph: Graph, step: Run) -> tuple[int, ...]:
    return graph.recipes[step.recipe].read_values
