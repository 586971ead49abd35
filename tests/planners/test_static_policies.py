"""Policies that offload values: their schedules are legal, fit, take the predicted time, and are what they say."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest

from lowtide.errors import PlanError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.machine import Link, Machine
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Drop, Fetch, Run, Schedule, Send
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.bounds.floors import working_set
from lowtide.planners.catalogue import MOVERS
from lowtide.planners.classic.itinerary import itinerary
from lowtide.planners.classic.static_offload import (
    CheckpointOffload,
    ConvolutionOffload,
    SavedOffload,
    TensorCache,
    cached,
    one_ahead,
    saved,
)
from lowtide.planners.classic.traffic import NoCapacity, Policy, carried
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.reductions.stages import stage_program
from tests.planners.tape import MIB, NAMED, Tape, chain
from tests.planners.training import with_updates

RATES_Bps = (4e9, 4e11)
GRAPHS: dict[str, Callable[[], Graph]] = {
    "chain": lambda: chain(8),
    **{name: NAMED[name] for name in ("gpt", "resnet", "unet")},
    "step": lambda: with_updates(chain(5)),
}
every_mover = pytest.mark.parametrize("planner", MOVERS, ids=lambda p: p.name)


@functools.cache
def graph_of(name: str) -> Graph:
    return GRAPHS[name]()


def machine(rate_Bps: float = 4e9, latency_s: float = 1e-5) -> Machine:
    ends = (("device", "host", "to_host"), ("host", "device", "from_host"))
    return Machine("here", links=tuple(Link(*end, rate_Bps, latency_s) for end in ends))


def problem(graph: Graph, budget_B: int, rate_Bps: float = 4e9, host_budget_B: int | None = None) -> Problem:
    return Problem(graph, budget_B, machine=machine(rate_Bps), host_budget_B=host_budget_B)


def solve(planner: AbstractPlanner, asked: Problem) -> Outcome:
    outcome = planner.solve(asked)
    if outcome.schedule is not None:
        check(asked.graph, outcome.schedule, asked.budget_B, host_budget_B=asked.host_budget_B)
        timeline = simulate(asked.graph, outcome.schedule, asked.machine)
        assert outcome.floor_B <= timeline.peak_B <= asked.budget_B
        assert 0.0 < outcome.bound_s <= timeline.time_s
    return outcome


@every_mover
@pytest.mark.parametrize("name", GRAPHS)
def test_plans_are_legal_at_every_budget_that_the_policy_meets(planner: AbstractPlanner, name: str) -> None:
    graph = graph_of(name)
    plain_B = simulate(graph, keep_all_schedule(graph)).peak_B
    least_B = planner.solve(problem(graph, plain_B - 1)).smallest_B or plain_B
    for rate_Bps, budget_B in itertools.product(RATES_Bps, (plain_B, (least_B + plain_B) // 2, least_B)):
        assert solve(planner, problem(graph, budget_B, rate_Bps)).schedule is not None
    below = solve(planner, problem(graph, least_B - 1))
    assert below.schedule is None
    assert below.status is (Status.INFEASIBLE if below.floor_B == least_B else Status.UNSOLVED)


@pytest.mark.parametrize("policy", [one_ahead, saved, cached], ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_the_walk_knows_the_time_as_the_simulator_does(policy: object, name: str) -> None:
    graph = graph_of(name)
    program = stage_program(graph)
    kept = program.lift(program.keep_all(0))
    trip = itinerary(program, kept)
    plan: Policy = policy(trip)  # type: ignore[operator]
    for rate_Bps in RATES_Bps:  # with bytes to spare, nothing is dropped before its copy is done
        schedule = carried(trip, plan, machine(rate_Bps), 2**40)
        now_s = 0.0
        for step, cut_point in zip(schedule.steps, simulate(graph, schedule, machine(rate_Bps)).instants, strict=True):
            assert not isinstance(step, Drop) or cut_point.stop_s <= now_s
            now_s = cut_point.stop_s if cut_point.engine == "compute" else now_s


def convolutions(length: int = 4) -> Graph:
    """Convolutions with two cheap layers behind each, whose backwards read what comes in."""
    tape = Tape("convolutions")
    tape.segment("forward")
    x = tape.given(MIB)
    for k in range(length):
        x = tape.op("conv", (x,), MIB, 1e-3, weight_B=0 if k else 64)
        x = tape.op("norm", (x,), MIB, 1e-3)
        x = tape.op("relu", (x,), MIB, 1e-3, saves="out")
    tape.backward(tape.op("loss", (x,), 4, 1e-3))
    return tape.graph()


def test_only_convolutions_leave_and_the_one_before_is_fetched_while_one_is_used() -> None:
    graph = convolutions()
    ops = {v: graph.recipes[graph.producers[v][0]].op for v in range(len(graph.values)) if graph.producers[v]}
    plain_B = simulate(graph, keep_all_schedule(graph)).peak_B
    outcome = solve(ConvolutionOffload(), problem(graph, plain_B - MIB, 8e9))
    assert outcome.schedule is not None
    steps = outcome.schedule.steps
    assert {ops[s.value] for s in steps if isinstance(s, Send)} == {"conv"}
    fetches = [(i, s.value) for i, s in enumerate(steps) if isinstance(s, Fetch)]
    assert len(fetches) >= 2
    for (_, user), (at, _) in itertools.pairwise(fetches):
        readers = [i for i, s in enumerate(steps) if isinstance(s, Run) and user in graph.recipes[s.recipe].read_values]
        first = next(i for i in readers if i > at - 2)
        assert at <= first  # the next one is in progress when this one is read


def test_saved_values_come_back_one_operator_ahead() -> None:
    graph = graph_of("chain")
    plain_B = simulate(graph, keep_all_schedule(graph)).peak_B
    outcome = solve(SavedOffload(), problem(graph, plain_B * 2 // 3, 1e11))
    assert outcome.schedule is not None
    steps = outcome.schedule.steps
    for at, step in enumerate(steps):
        if isinstance(step, Fetch):
            behind = [s.recipe for s in steps[at:] if isinstance(s, Run)]
            wanted = next(k for k, r in enumerate(behind) if step.value in graph.recipes[r].read_values)
            assert wanted <= 1


def test_a_cache_evicts_what_was_used_least_recently_and_only_when_it_is_full() -> None:
    graph = graph_of("chain")
    plain_B = simulate(graph, keep_all_schedule(graph)).peak_B
    outcome = solve(TensorCache(), problem(graph, plain_B * 2 // 3))
    assert outcome.schedule is not None
    sends = [s.value for s in outcome.schedule.steps if isinstance(s, Send)]
    assert sends == sorted(sends)  # the first that the forward made
    assert len(set(sends)) == len(sends)  # a copy on the host is used again
    full = solve(TensorCache(), problem(graph, plain_B))
    assert full.schedule is not None
    assert not any(isinstance(s, Send) for s in full.schedule.steps)
    assert full.status is Status.OPTIMAL


def test_the_host_has_a_budget_of_its_own() -> None:
    graph = graph_of("chain")
    plain_B = simulate(graph, keep_all_schedule(graph)).peak_B
    whole = solve(SavedOffload(), problem(graph, plain_B * 2 // 3))
    assert whole.schedule is not None
    used_B = dict(simulate(graph, whole.schedule).memory_peaks_B)["host"]
    assert solve(SavedOffload(), problem(graph, plain_B * 2 // 3, host_budget_B=used_B)).schedule is not None
    some = solve(SavedOffload(), problem(graph, plain_B - MIB, host_budget_B=2 * MIB))
    assert some.schedule is not None
    none = solve(TensorCache(), problem(graph, plain_B * 2 // 3, host_budget_B=MIB))
    assert none.schedule is None
    assert none.stats["host_was_full"]


def test_checkpoints_on_the_host_need_less_than_checkpoints_alone() -> None:
    graph = graph_of("gpt")
    plain_B = simulate(graph, keep_all_schedule(graph)).peak_B
    outcome = CheckpointOffload().solve(problem(graph, plain_B - 1))
    alone = SavedOffload().solve(problem(graph, plain_B - 1))
    assert outcome.smallest_B is not None
    assert alone.smallest_B is not None
    assert outcome.smallest_B < plain_B
    assert outcome.stats["sent_B"] < alone.stats["sent_B"]


def test_the_largest_working_set_is_a_floor_that_a_cache_comes_close_to() -> None:
    for name in ("chain", "unet"):
        graph = graph_of(name)
        floor_B = working_set(graph).floor_B
        lifetimes_B = sum(v.size_B for v in graph.values if v.leaves is not None)  # a cache keeps what leaves
        assert solve(TensorCache(), problem(graph, floor_B + lifetimes_B)).schedule is not None
        assert solve(TensorCache(), problem(graph, floor_B - 1)).status is Status.INFEASIBLE


def test_host_resident_values_lower_the_floor() -> None:
    graph = graph_of("step")
    assert working_set(graph, persistent_may_move=True).floor_B < working_set(graph).floor_B


@every_mover
def test_what_is_refused_and_why(planner: AbstractPlanner) -> None:
    graph = graph_of("chain")
    assert planner.refuses(problem(graph, 1)) is None
    assert "no links" in str(planner.refuses(Problem(graph, 1)))
    one_way = Machine("half", links=machine().links[:1])
    assert "'half' has no link" in str(planner.refuses(Problem(graph, 1, machine=one_way, host_budget_B=None)))
    assert "bundle of several parts" in str(planner.refuses(problem(chain(4, parts=2), 1)))
    with pytest.raises(PlanError, match="no links"):
        planner.solve(Problem(graph, 1))


def test_without_anything_to_offload_it_does_not_fit() -> None:
    program = stage_program(graph_of("chain"))
    schedule: Schedule = program.lift(program.keep_all(0))
    trip = itinerary(program, schedule)
    with pytest.raises(NoCapacity):
        carried(trip, Policy(), machine(), simulate(program.graph, schedule).peak_B - 1)
