"""A search that begins from a schedule: reading it back loses nothing, and other sizes lead to a legal plan."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from lowtide._core import Greedy
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed, movable_values
from lowtide.ir.likeness import structure
from lowtide.ir.plan import Problem, Status
from lowtide.ir.schedule import Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.smallest import smallest_budget
from lowtide.planners.start import read_back
from tests.planners.candidates import with_candidates
from tests.planners.tape import NAMED, chain, gpt, random_graph
from tests.planners.training import with_updates

GRAPHS = {
    **NAMED,
    **{f"random{s}": lambda s=s: random_graph(s, 14, 1 + s % 3, True) for s in range(12)},
    **{f"candidates{s}": lambda s=s: with_candidates(random_graph(s, 14, 1 + s % 3, True)) for s in range(4)},
    "unet-candidates": lambda: with_candidates(NAMED["unet"](), ("relu", "add", "bwd")),
}
every_graph = pytest.mark.parametrize("name", GRAPHS)


def scaled(graph: Graph, factor: int) -> Graph:
    """The same program on tensors of other sizes."""
    values = tuple(
        msgspec.structs.replace(v, size_B=v.size_B if v.persistent else factor * v.size_B) for v in graph.values
    )
    recipes = tuple(
        msgspec.structs.replace(
            r,
            time_s=factor * r.time_s,
            trace=msgspec.structs.replace(r.trace, events=tuple(factor * e if e > 0 else e for e in r.trace.events)),
        )
        for r in graph.recipes
    )
    return msgspec.structs.replace(graph, values=values, recipes=recipes)


def budget_between(graph: Graph, percent: int) -> int:
    """Of what is between the smallest budget with a plan and what keeping everything takes, so much above the first."""
    most_B = stage_program(graph).keep_all(0).peak_B
    least_B = smallest_budget(Problem(graph, 0))
    assert least_B is not None
    return least_B + (most_B - least_B) * percent // 100


@every_graph
@pytest.mark.parametrize("percent", [100, 50, 10])
def test_reading_back_is_the_inverse_of_lifting(name: str, percent: int) -> None:
    graph = GRAPHS[name]()
    program = stage_program(graph)
    schedule = Portfolio().solve(Problem(graph, budget_between(graph, percent), work=3000)).schedule
    assert schedule is not None
    state, again = program.keep_all(0), program.keep_all(0)
    assert state.assign(read_back(program, schedule))
    lifted = program.lift(state)  # the planner may have chosen another order of first runs; it is not read back
    assert simulate(graph, lifted).time_s == pytest.approx(simulate(graph, schedule).time_s)
    assert again.assign(read_back(program, lifted))
    assert program.lift(again) == lifted


OFFLOAD = {
    **{name: GRAPHS[name] for name in ("chain", "bundle", "unet", "random3", "candidates2")},
    "step": lambda: with_updates(chain(4)),
    "hosted step": lambda: (lambda g: housed(g, movable_values(g)))(with_updates(chain(4), merged=True)),
}


@pytest.mark.parametrize("name", OFFLOAD)
@pytest.mark.parametrize("price", [0.0, 1e3])
def test_reading_back_fetches_is_the_inverse_of_lifting(name: str, price: float) -> None:
    graph = OFFLOAD[name]()
    program = stage_program(graph, movable=fetchable_values(graph, 1))
    program.core.set_prices(price, price)
    state = program.keep_all(int(program.core.operator_floors().max()))
    Greedy(state).run(1000)
    schedule = program.lift(state)
    again = program.keep_all(0)
    assert again.assign(read_back(program, schedule))
    assert program.lift(again) == schedule
    assert state.fetched_B > 0


@every_graph
@pytest.mark.parametrize("factor", [2, 3])
def test_a_plan_serves_another_size_of_its_program_at_once(name: str, factor: int) -> None:
    graph, larger = GRAPHS[name](), scaled(GRAPHS[name](), factor)
    assert structure(graph) == structure(larger)
    small_B, large_B = (budget_between(g, 50) for g in (graph, larger))
    start = Portfolio().solve(Problem(graph, small_B, work=3000)).schedule
    assert start is not None
    outcome = Portfolio().solve(Problem(larger, large_B, start=start, time_limit_s=0.0))
    if outcome.schedule is None:
        assert outcome.status is Status.UNSOLVED
        return
    check(larger, outcome.schedule, large_B)
    assert outcome.stats["out_of_time"]
    assert outcome.stats["winner"] == "start"
    assert outcome.bound_s <= simulate(larger, outcome.schedule).time_s


def test_a_start_that_does_not_fit_is_shrunk_until_it_does() -> None:
    graph = gpt(2)
    everything = stage_program(graph).keep_all(0)
    budget_B = everything.peak_B * 7 // 10
    start = stage_program(graph).lift(everything)
    outcome = Portfolio().solve(Problem(graph, budget_B, start=start, time_limit_s=0.0))
    assert outcome.schedule is not None
    check(graph, outcome.schedule, budget_B)


def test_a_search_from_a_start_is_not_worse_than_the_start() -> None:
    graph = gpt(2)
    budget_B = stage_program(graph).keep_all(0).peak_B * 6 // 10
    start = Portfolio().solve(Problem(graph, budget_B, work=4000)).schedule
    assert start is not None
    again = Portfolio().solve(Problem(graph, budget_B, work=2000, start=start)).schedule
    assert again is not None
    assert simulate(graph, again).time_s <= simulate(graph, start).time_s + 1e-12


def test_a_schedule_of_another_program_is_read_without_harm() -> None:
    foreign = Portfolio().solve(Problem(chain(6), 2**40)).schedule
    assert foreign is not None
    program = stage_program(gpt(2))
    other = Schedule(tuple(s for s in foreign.steps if isinstance(s, Run)))
    assert len(read_back(program, other)) == len(program.core.gap_value)
    assert read_back(program, other).dtype == np.int32


def test_structure_knows_programs_apart() -> None:
    graph = gpt(2)
    renamed = msgspec.structs.replace(graph, name="other", key="other")
    fewer = msgspec.structs.replace(graph, program=graph.program[:-1])
    assert structure(graph) == structure(renamed)
    assert structure(graph) != structure(fewer)
    assert structure(graph) != structure(gpt(3))
