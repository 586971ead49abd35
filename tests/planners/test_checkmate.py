"""Checkmate's model against exhaustive search, its own relaxation, and the simulator."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from benchmarks.planning.checkmate_models import training, vgg

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem, Status
from lowtide.ir.simulate import simulate
from lowtide.planners.bounds.checkmate import CheckmateModel, relaxation_bound
from lowtide.planners.classic.checkmate import Checkmate, LpRounding, RandomRounding
from lowtide.planners.reductions.residence import RESIDENCE_CLASS, Residence, of_lifetimes, residence
from lowtide.planners.reductions.stages import StageProgram, stage_program
from tests.planners.brute_force import Exhaustive
from tests.planners.tape import chain, gpt, random_graph, unet

TINY = {2: (7, 3), 6: (7, 1), 10: (7, 2), 13: (6, 2), 31: (8, 2), 35: (8, 3)}
GRAPHS = {
    "chain": lambda: chain(6),
    "bundle": lambda: chain(3, parts=2),
    "unet": lambda: unet(1),
    "gpt": lambda: gpt(1),
    **{f"random{s}": functools.partial(random_graph, s, 12, 1 + s % 3, True) for s in range(12)},
}


def tiny(seed: int) -> Graph:
    return random_graph(seed, *TINY[seed], mirrored=True)


@pytest.mark.parametrize("seed", TINY)
def test_it_finds_the_optimum_of_its_class_and_proves_it(seed: int) -> None:
    graph = tiny(seed)
    program = stage_program(graph)
    peak_B = program.keep_all(0).peak_B
    for percent in (95, 90, 80, 70):
        budget_B = peak_B * percent // 100
        best_s = Exhaustive(graph, budget_B, ordered=True).least_time_s()
        outcome = Checkmate().solve(Problem(graph, budget_B))
        relaxed = relaxation_bound(program, budget_B)
        if best_s is None:
            assert outcome.schedule is None
            continue
        assert outcome.schedule is not None
        check(graph, outcome.schedule, budget_B)
        assert simulate(graph, outcome.schedule).time_s == pytest.approx(best_s, abs=1e-9)
        assert outcome.status is Status.OPTIMAL
        assert outcome.bound_s <= best_s + 1e-12
        assert (program.time_ps + relaxed.bound_ps) * 1e-12 <= best_s + 1e-12


def test_whoever_listens_hears_of_plans_and_bounds_as_they_come() -> None:
    graph = chain(12)
    program = stage_program(graph)
    heard: list[tuple[float, float]] = []
    model = CheckmateModel(program, program.keep_all(0).peak_B * 70 // 100)
    solution = model.solve(nodes=1000, told=lambda found_ps, bound_ps: heard.append((found_ps, bound_ps)))
    assert solution.there is not None
    found = [found_ps for found_ps, _ in heard if np.isfinite(found_ps)]
    assert found
    assert found == sorted(found, reverse=True)
    assert all(bound_ps <= found[-1] * (1.0 + 1e-6) for _, bound_ps in heard)
    assert solution.bound_ps <= found[-1]


def some_plan(program: StageProgram, dice: random.Random) -> Residence | None:
    """What a random choice of values comes to."""
    wanted = [{v for v in range(len(program.values)) if dice.random() < 0.6} for _ in program.stages]
    return residence(program, wanted)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_recomputed_follows_from_what_is_kept(name: str) -> None:
    """Random choices give legal plans at the time they claim; asking for what they hold changes nothing."""
    graph = GRAPHS[name]()
    program = stage_program(graph)
    dice = random.Random(1)
    for _ in range(12):
        plan = some_plan(program, dice)
        assert plan is not None
        schedule = program.lift(plan)
        check(graph, schedule)
        assert simulate(graph, schedule).time_s == pytest.approx(plan.time_ps * 1e-12, abs=1e-9)
        assert residence(program, plan.there) == plan
    assert residence(program, of_lifetimes(program, program.keep_all(0))).time_ps == program.time_ps


@pytest.mark.parametrize("name", GRAPHS)
def test_the_model_says_of_every_plan_what_the_simulator_says(name: str) -> None:
    """A plan's columns meet all rows for the budget that is its simulated peak, and not for a percent less."""
    graph = GRAPHS[name]()
    program = stage_program(graph)
    dice = random.Random(2)
    for _ in range(6):
        plan = some_plan(program, dice)
        assert plan is not None
        peak_B = simulate(graph, program.lift(plan)).peak_B
        assert violation(CheckmateModel(program, peak_B), plan) <= 1e-6
        assert violation(CheckmateModel(program, int(peak_B * 0.99)), plan) > 1.0


def violation(model: CheckmateModel, plan: Residence) -> float:
    """How far a plan's columns miss their bounds and rows at most."""
    values = model.values(plan)
    program = model.program
    spent = sum(program.stages[k].recompute_ps for again in plan.recompute_lists for k in again)
    assert float(np.dot(model.milp.cost, values)) == pytest.approx(spent * 1e-9)
    return model.milp.violation(values)


def test_the_relaxation_is_below_the_optimum_and_rounding_above() -> None:
    graph = training(vgg(side=32), "vgg19")
    program = stage_program(graph)
    budget_B = program.keep_all(0).peak_B * 85 // 100
    relaxed = relaxation_bound(program, budget_B)
    exact = Checkmate().solve(Problem(graph, budget_B, work=2000))
    assert exact.status is Status.OPTIMAL
    assert exact.schedule is not None
    assert exact.bound_class == RESIDENCE_CLASS
    best_s = simulate(graph, exact.schedule).time_s
    assert (program.time_ps + relaxed.bound_ps) * 1e-12 <= best_s
    for planner in (LpRounding(), RandomRounding(samples=20)):
        rounded = planner.solve(Problem(graph, budget_B))
        assert rounded.schedule is None or simulate(graph, rounded.schedule).time_s >= best_s - 1e-12


def test_random_rounding_depends_on_the_seed_alone() -> None:
    graph = chain(6)
    budget_B = stage_program(graph).keep_all(0).peak_B * 70 // 100
    outcomes = [RandomRounding().solve(Problem(graph, budget_B, seed=seed)).schedule for seed in (3, 3)]
    assert outcomes[0] is not None
    assert outcomes[0] == outcomes[1]


def test_a_budget_that_no_schedule_of_the_class_meets_is_no_budget_that_none_meets() -> None:
    graph = random_graph(7, 14, 2, True)
    budget_B = stage_program(graph).keep_all(0).peak_B * 75 // 100
    outcome = LpRounding().solve(Problem(graph, budget_B))
    assert outcome.schedule is None
    assert outcome.status is Status.UNSOLVED
    assert outcome.smallest_B is not None


def test_large_programs_are_declined() -> None:
    problem = Problem(chain(6), 1)
    for planner in (Checkmate(most_recipes=13), LpRounding(most_recipes=13), RandomRounding(most_recipes=13)):
        assert "14 recipes" in str(planner.refuses(problem))
