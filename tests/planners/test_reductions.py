"""Each reduction and its inverse, on graphs small enough to follow by hand."""

from __future__ import annotations

import msgspec

from lowtide import _core
from lowtide.ir.check import check
from lowtide.ir.graph import Effect, Group, Option, Role
from lowtide.ir.plan import Problem, Status
from lowtide.ir.schedule import Drop, Run
from lowtide.ir.simulate import simulate
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.greedy import Greedy
from lowtide.planners.portfolio import portfolio
from lowtide.planners.reductions.program import needed_program
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.smallest import smallest_budget
from tests.planners.tape import MIB, Tape, chain, gpt, unet


def dropout_tape() -> Tape:
    """x -> dropout -> three steps that need memory -> backward reads the dropout's output."""
    tape = Tape("dropout")
    tape.segment("forward")
    x = tape.given(MIB)
    y = tape.op("dropout", (x,), MIB, 1e-3, weight_B=64, random=True)
    z = y
    for _ in range(3):
        z = tape.op("f", (z,), MIB, 1e-3, weight_B=64)
    tape.backward(tape.op("loss", (z,), 4, 1e-3))
    return tape


def test_dead_pure_recipes_do_not_run_and_effects_do() -> None:
    tape = Tape()
    tape.segment("forward")
    x = tape.given(8)
    dead, read_by_dead, kept, opaque = (tape.value(8) for _ in range(4))
    tape.recipe("read_by_dead", (x,), (read_by_dead,), 1e-3)
    tape.recipe("dead", (read_by_dead,), (dead,), 1e-3)
    tape.recipe("opaque", (x,), (opaque,), 1e-3, effect=Effect.OPAQUE)
    tape.recipe("kept", (x,), (kept,), 1e-3)
    tape.leave(kept, 0, Role.OUTPUT)
    assert needed_program(tape.graph()) == (2, 3)


def test_a_replay_saves_its_state_once_and_drops_it_after_the_last_use() -> None:
    graph = dropout_tape().graph()
    program = stage_program(graph)
    (random, replay), *_ = program.replays.items()
    state = program.keep_all(0)
    value = graph.recipes[replay.recipe].outputs[0]
    gap = program.core.gap_at(program.values.index(value), len(program.stages) // 2)
    assert state.apply([gap], [program.core.gap_start(gap) + 1])
    state.commit()
    schedule = program.lift(state)
    check(graph, schedule)
    runs = {s.recipe: i for i, s in enumerate(schedule.steps) if isinstance(s, Run)}
    assert replay.state in schedule.steps[runs[random]].keep
    assert schedule.steps[runs[replay.recipe] + 1] == Drop(replay.state)
    assert simulate(graph, schedule).peak_B <= state.peak_B + program.reserve_B


def test_without_replays_no_state_is_saved() -> None:
    graph = dropout_tape().graph()
    program = stage_program(graph)
    schedule = program.lift(program.keep_all(0))
    states = {r.state for r in program.replays.values()}
    assert not any(states & set(s.keep) for s in schedule.steps if isinstance(s, Run))


def test_nothing_reads_what_may_no_longer_be_read() -> None:
    graph = chain(6)
    weights = [v.id for v in graph.values if v.role is Role.PARAMETER]
    values = tuple(msgspec.structs.replace(v, readable_through=0) if v.id in weights else v for v in graph.values)
    forward = [r for r in graph.program if graph.recipes[r].segment == 0]
    reads_backward = any(set(weights) & set(graph.recipes[r].read_values) for r in graph.program if r not in forward)
    assert reads_backward  # so this graph is not legal; take the weights out of the backward
    recipes = tuple(
        msgspec.structs.replace(r, reads=tuple(x for x in r.reads if x.value not in weights)) if r.segment == 1 else r
        for r in graph.recipes
    )
    program = stage_program(msgspec.structs.replace(graph, values=values, recipes=recipes))
    last_forward = max(t for t, s in enumerate(program.stages) if s.segment == 0)
    assert all(s.recompute_through == last_forward for s in program.stages if s.recipe in forward[:-1])


def test_recomputations_stay_in_their_part_of_a_bundle() -> None:
    program = stage_program(chain(4, parts=2))
    last_of_first = max(t for t, s in enumerate(program.stages) if s.segment <= 1)
    assert all(s.recompute_through <= last_of_first for s in program.stages if s.segment <= 1)


def test_groups_keep_their_first_option_and_the_bound_says_so() -> None:
    graph = chain(4)
    twin = msgspec.structs.replace(graph.recipes[0], id=len(graph.recipes))
    group = Group("f", (Option("plain", (0,)), Option("other", (twin.id,))))
    graph = msgspec.structs.replace(graph, recipes=(*graph.recipes, twin), groups=(group,))
    outcome = Greedy().solve(Problem(graph, stage_program(graph).keep_all(0).peak_B * 3 // 4))
    assert outcome.schedule is not None
    assert not any(isinstance(s, Run) and s.recipe == twin.id for s in outcome.schedule.steps)
    assert "first option" in outcome.bound_class


def test_what_the_caller_frees_is_recomputed() -> None:
    tape = Tape()
    tape.segment("forward")
    x, y, z = tape.given(64), tape.value(64), tape.value(64)
    first = tape.recipe("f", (x,), (y,), 1e-3)
    second = tape.recipe("g", (y,), (z,), 1e-3)
    tape.leave(y, 0, Role.UPDATE, held=False)
    tape.segment("backward")
    end = tape.value(64)
    last = tape.recipe("h", (z,), (end,), 1e-3)
    tape.leave(end, 1, Role.GRADIENT)
    program = stage_program(tape.graph())
    state = program.keep_all(0)
    assert state.time_ps == program.time_ps
    gap = program.core.gap_at(program.values.index(z), len(program.stages) - 2)
    assert state.apply([gap], [program.core.gap_start(gap) + 1])  # g again needs y, which is gone
    state.commit()
    schedule = program.lift(state)
    check(tape.graph(), schedule)
    assert [s.recipe for s in schedule.steps if isinstance(s, Run)] == [first, second, first, second, last]


def test_floors_hold_and_name_recipes() -> None:
    for graph in (gpt(2), unet(2), chain(5)):
        program = stage_program(graph)
        floor = op_floor(program)
        assert graph.persistent_B < floor.floor_B <= program.keep_all(0).peak_B
        assert floor.recipes
        outcome = portfolio(Problem(graph, floor.floor_B - 1, work=2000))
        assert outcome.status is Status.INFEASIBLE
        assert outcome.floor_B == floor.floor_B
        assert outcome.smallest_B is not None
        assert outcome.smallest_B >= floor.floor_B


def test_a_plan_is_found_at_the_smallest_budget() -> None:
    for graph in (gpt(2), unet(2), dropout_tape().graph()):
        budget_B = smallest_budget(Problem(graph, 1))
        assert budget_B is not None
        outcome = portfolio(Problem(graph, budget_B, work=500))
        assert outcome.schedule is not None
        check(graph, outcome.schedule, budget_B)


def test_the_core_tells_its_constants() -> None:
    assert _core.KEEP == -1
    assert _core.NEVER == 2**31 - 1
