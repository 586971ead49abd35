"""What a planner owes that may offload values: legal within two budgets, honest, the same every time, never slower."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import pytest

from lowtide.errors import PlanError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed
from lowtide.ir.machine import Machine
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Run
from lowtide.ir.simulate import simulate
from lowtide.planners.base import Progress
from lowtide.planners.bounds.cut_model import choice_cut, offload_cut
from lowtide.planners.bounds.cut_points import CutPoint
from lowtide.planners.bounds.floors import working_set
from lowtide.planners.frontier import solver, trace
from lowtide.planners.implementations.candidates import all_candidates
from lowtide.planners.offload.extremes import copies_least_s, run_once
from lowtide.planners.offload.offload_search import CLOSE
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import stage_program
from tests.planners.menus import random_menu
from tests.planners.offload_brute_force import OffloadExhaustive
from tests.planners.offloading import linked
from tests.planners.tape import NAMED, random_graph
from tests.planners.test_transfers import B, there_and_back
from tests.planners.training import with_updates

GRAPHS: dict[str, Callable[[], Graph]] = {
    **{name: NAMED[name] for name in ("chain", "bundle", "unet")},
    "menu": functools.partial(random_menu, 6, 14, 2),
    **{f"random{s}": functools.partial(random_graph, s, 14, 1 + s % 3, True) for s in (1, 2, 5)},
    **{f"{name} step": functools.partial(lambda n: with_updates(NAMED[n](), 2), name) for name in ("chain", "unet")},
}


@functools.cache
def graph_of(name: str) -> Graph:
    return GRAPHS[name]()


def link_of(graph: Graph, swiftness: float) -> Machine:
    """A link that copies every value of the step once in so many steps."""
    step_s = sum(graph.recipes[r].time_s for r in graph.program)
    return linked(sum(v.size_B for v in graph.values) / step_s * swiftness)


def problem_of(graph: Graph, percent: int, swiftness: float, **more: object) -> Problem:
    budget_B = stage_program(graph).keep_all(0).peak_B * percent // 100
    facts: dict[str, object] = {"work": 2000, "host_budget_B": None, **more}
    return Problem(graph, budget_B, machine=link_of(graph, swiftness), **facts)  # type: ignore[arg-type]


def without_clock(outcome: Outcome) -> Outcome:
    stats = {k: v for k, v in outcome.stats.items() if not k.endswith("_s")}
    return msgspec.structs.replace(outcome, stats=stats)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("percent", [50])
def test_plans_are_legal_within_both_budgets_and_no_slower_than_without_offload(name: str, percent: int) -> None:
    graph = graph_of(name)
    plain = Portfolio().solve(problem_of(graph, percent, 1.0, host_budget_B=0))
    for swiftness, host_budget_B in ((2.0, None), (0.3, stage_program(graph).keep_all(0).peak_B // 4)):
        problem = problem_of(graph, percent, swiftness, host_budget_B=host_budget_B)
        outcome = Portfolio().solve(problem)
        lender = housed(graph, outcome.hosted)
        if outcome.schedule is None:
            assert plain.schedule is None
            assert outcome.status is not Status.INFEASIBLE or outcome.floor_B > problem.budget_B
            if outcome.smallest is not None:
                check(lender, outcome.smallest, outcome.smallest_B, host_budget_B=host_budget_B)
            continue
        check(lender, outcome.schedule, problem.budget_B, host_budget_B=host_budget_B)
        timeline = simulate(lender, outcome.schedule, problem.machine)
        assert outcome.floor_B <= timeline.peak_B
        assert 0.0 < outcome.bound_s <= timeline.time_s
        if plain.schedule is not None:
            plain_s = simulate(graph, plain.schedule).time_s
            assert timeline.time_s <= (1.0 + CLOSE) * plain_s


@pytest.mark.parametrize("name", ["bundle", "unet", "random1", "random5", "unet step"])
@pytest.mark.parametrize("swiftness", [1.0, 8.0])
def test_choosing_between_all_is_no_slower_than_copies_alone(name: str, swiftness: float) -> None:
    graph = base_order(graph_of(name))
    for percent in (60, 80, 100):  # the first at which copies alone are enough
        problem = problem_of(graph, percent, swiftness)
        once = msgspec.structs.replace(problem, graph=run_once(graph))
        joint, alone = (Portfolio().solve(p) for p in (problem, once))
        if alone.schedule is not None:
            break
    assert alone.schedule is not None
    runs = [s.recipe for s in alone.schedule.steps if isinstance(s, Run)]
    assert len(runs) == len(set(runs))
    alone_s = simulate(housed(once.graph, alone.hosted), alone.schedule, problem.machine).time_s
    check(housed(graph, alone.hosted), alone.schedule, problem.budget_B)
    assert copies_least_s(once.graph, problem.budget_B, link_of(graph, swiftness)) <= alone_s
    assert joint.schedule is not None
    joint_s = simulate(housed(graph, joint.hosted), joint.schedule, problem.machine).time_s
    assert joint_s <= (1.0 + CLOSE) * alone_s


@pytest.mark.parametrize("name", ["unet", "chain step"])
def test_the_same_seed_and_work_give_the_same_outcome(name: str) -> None:
    problem = problem_of(graph_of(name), 50, 0.5, seed=3)
    assert without_clock(Portfolio().solve(problem)) == without_clock(Portfolio().solve(problem))


@pytest.mark.parametrize("runs_s", [(1.0, 2.0, 1.0, 1.0, 3.0), (2.0, 1.0, 1.0, 2.0, 2.0), (3.0, 1.0, 2.0, 1.0, 1.0)])
@pytest.mark.parametrize("link_s", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("extra_B", [0, B])
def test_bounds_hold_against_the_true_optimum(runs_s: tuple[float, ...], link_s: float, extra_B: int) -> None:
    graph, budget_B = there_and_back(runs_s, (B, 2 * B)), 3 * B + extra_B
    machine = linked(B / link_s)
    best_s = OffloadExhaustive(graph, budget_B, link_s / B, link_s / B).least_s()
    outcome = Portfolio().solve(Problem(graph, budget_B, work=2000, machine=machine, host_budget_B=None))
    assert best_s is not None
    assert outcome.schedule is not None
    time_s = simulate(graph, outcome.schedule, machine).time_s
    assert outcome.bound_s <= best_s * (1 + 1e-9)
    assert time_s >= best_s * (1 - 1e-9)
    assert time_s <= 1.15 * best_s
    program = stage_program(graph)
    for stage in range(1, len(program.stages)):
        bound_ps = offload_cut(program, stage, machine).solve(budget_B).bound_ps
        assert bound_ps * 1e-12 <= best_s * (1 + 1e-9)


def test_a_step_that_fits_moves_nothing() -> None:
    graph = graph_of("unet")
    outcome = Portfolio().solve(problem_of(graph, 100, 1.0))
    assert outcome.status is Status.OPTIMAL
    assert outcome.stats["sent_B"] == outcome.stats["fetched_B"] == 0


def test_weights_that_do_not_fit_live_on_the_host() -> None:
    graph = with_updates(NAMED["unet"](), 2)
    budget_B = working_set(graph).floor_B - 1
    outcome = Portfolio().solve(Problem(graph, budget_B, work=2000, machine=link_of(graph, 2.0), host_budget_B=None))
    assert outcome.schedule is not None
    assert outcome.hosted
    check(housed(graph, outcome.hosted), outcome.schedule, budget_B)


def test_a_search_goes_on_from_a_plan_that_moves() -> None:
    graph = with_updates(NAMED["unet"](), 2)
    first = Portfolio().solve(problem_of(graph, 60, 1.0))
    problem = problem_of(graph, 58, 1.0, start=first.schedule)
    outcome = Portfolio().solve(problem)
    assert outcome.schedule is not None
    assert "plain_s" not in outcome.stats
    check(housed(graph, outcome.hosted), outcome.schedule, problem.budget_B)


@pytest.mark.parametrize("seed", [2, 6, 13])
def test_bounds_for_all_choices_are_below_every_plan(seed: int) -> None:
    graph = random_menu(seed, 10, 1 + seed % 2)
    problem = problem_of(graph, 85, 0.5)
    outcome = Portfolio().solve(problem)
    assert problem.machine is not None
    assert outcome.schedule is not None
    time_s = simulate(housed(graph, outcome.hosted), outcome.schedule, problem.machine).time_s
    candidates = all_candidates(graph)
    for place, segment in enumerate(candidates.segment_of):
        cut = choice_cut(candidates, (CutPoint(segment, place),), problem.budget_B, problem.machine)
        assert cut.solve(problem.budget_B).bound_ps * 1e-12 <= time_s * (1 + 1e-9)


def test_a_frontier_may_offload() -> None:
    graph = NAMED["unet"]()
    machine = link_of(graph, 1.0)
    ask = solver(graph, Portfolio(), seed=0, work=2000, machine=machine, host_budget_B=None)
    record = trace(graph, points=3, solve=ask, work=2000)
    still = trace(graph, points=3, work=2000)
    assert record.points[-1].time_s is not None
    assert still.points[-1].time_s is None or record.points[-1].time_s < still.points[-1].time_s


def test_a_spent_time_limit_stops_the_search() -> None:
    outcome = Portfolio().solve(problem_of(graph_of("unet"), 70, 1.0, work=10**9, time_limit_s=0.0))
    assert outcome.status in (Status.UNSOLVED, Status.FEASIBLE)
    assert outcome.stats["out_of_time"]


def test_ctrl_c_without_a_plan_is_raised() -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Portfolio().solve(problem_of(graph_of("unet"), 45, 1.0), interrupt)


def test_what_cannot_be_offloaded_is_refused_in_words() -> None:
    graph = with_updates(NAMED["chain"](), 1, engine="host")
    problem = Problem(graph, 1, machine=linked(1e9), host_budget_B=None)
    with pytest.raises(PlanError, match="on the host"):
        Portfolio().solve(problem)
