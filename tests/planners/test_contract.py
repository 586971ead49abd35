"""What every planner owes: one list, all planners. A new planner is tested by its line in the catalogue."""

from __future__ import annotations

import functools
import re
import signal
import threading

import msgspec
import pytest

from lowtide.errors import PlanError
from lowtide.ir.call import Read
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, Takeover
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.simulate import simulate
from lowtide.planners.annealing import LocalSearch
from lowtide.planners.base import AbstractPlanner, Progress, Watch
from lowtide.planners.bounds.classes import BOUND_CLASS, CHOSEN_CLASS
from lowtide.planners.bounds.cut_model import stage_cut
from lowtide.planners.bounds.milp import Effort
from lowtide.planners.catalogue import CLASSICS, PLANNERS
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.residence import RESIDENCE_CLASS
from lowtide.planners.reductions.stages import stage_program
from tests.planners.brute_force import Exhaustive
from tests.planners.candidates import with_candidates
from tests.planners.menus import MENUS, random_menu
from tests.planners.tape import NAMED, chain, random_graph, resnet, unet

TINY = {seed: (5 + seed % 4, 1 + seed % 3) for seed in (0, 1, 2, 6, 9, 10, 13, 18, 20, 25, 30, 31, 32, 35, 38)}
GRAPHS = {
    **NAMED,
    **MENUS,
    "random menu": functools.partial(random_menu, 6, 14, 2),
    **{f"random{s}": functools.partial(random_graph, s, 14, 1 + s % 3, True) for s in range(8)},
    **{f"candidates{s}": lambda s=s: with_candidates(random_graph(s, 14, 1 + s % 3, True)) for s in range(3)},
    "resnet-candidates": lambda: with_candidates(NAMED["resnet"](), ("relu", "add")),
}
every_planner = pytest.mark.parametrize("planner", [*PLANNERS, *CLASSICS], ids=lambda p: p.name)
every_graph = pytest.mark.parametrize("name", GRAPHS)


@functools.cache
def graph_of(name: str) -> Graph:
    return GRAPHS[name]()


@functools.cache
def tiny(seed: int, in_place: bool = False) -> Graph:
    graph = random_graph(seed, *TINY[seed], mirrored=True)
    return with_candidates(graph) if in_place else graph


@functools.cache
def optimum_s(seed: int, percent: int, bound_class: str, in_place: bool = False) -> float | None:
    ordered = {BOUND_CLASS: False, CHOSEN_CLASS: False, RESIDENCE_CLASS: True}[bound_class]
    graph = base_order(tiny(seed, in_place)) if bound_class == CHOSEN_CLASS else tiny(seed, in_place)
    return Exhaustive(graph, budget_B(tiny(seed, in_place), percent), ordered=ordered).least_time_s()


def solve(planner: AbstractPlanner, problem: Problem, watch: Watch | None = None) -> Outcome:
    """Solves, or skips the test where the planner says why it does not treat the problem."""
    if reason := planner.refuses(problem):
        with pytest.raises(PlanError, match=re.escape(reason)):
            planner.solve(problem)
        pytest.skip(reason)
    return planner.solve(problem, watch)


def budget_B(graph: Graph, percent: int) -> int:
    return stage_program(graph).keep_all(0).peak_B * percent // 100


def without_clock(outcome: Outcome) -> Outcome:
    stats = {k: v for k, v in outcome.stats.items() if not k.endswith("_s")}
    return msgspec.structs.replace(outcome, stats=stats)


@every_graph
@every_planner
def test_schedules_are_legal_and_within_the_budget(planner: AbstractPlanner, name: str) -> None:
    graph = graph_of(name)
    for percent in (100, 75, 55):
        problem = Problem(graph, budget_B(graph, percent), work=4000)
        outcome = solve(planner, problem)
        assert (outcome.schedule is None) == (outcome.status in (Status.UNSOLVED, Status.INFEASIBLE))
        if outcome.schedule is None:
            assert percent < 100
            assert outcome.status is not Status.INFEASIBLE or outcome.floor_B > problem.budget_B
            continue
        check(graph, outcome.schedule, problem.budget_B)
        timeline = simulate(graph, outcome.schedule)
        assert timeline.peak_B <= problem.budget_B
        assert outcome.floor_B <= timeline.peak_B
        assert 0.0 < outcome.bound_s <= timeline.time_s
        if outcome.status is Status.OPTIMAL:
            assert timeline.time_s <= outcome.bound_s * (1 + 1e-5)


@every_planner
@pytest.mark.parametrize("name", ["gpt", "random3", "bundle", "resnet menu"])
def test_the_same_seed_and_work_give_the_same_outcome(planner: AbstractPlanner, name: str) -> None:
    graph = graph_of(name)
    problem = Problem(graph, budget_B(graph, 60), seed=3, work=3000)
    assert without_clock(solve(planner, problem)) == without_clock(planner.solve(problem))


@every_planner
@pytest.mark.parametrize("seed", TINY)
def test_bounds_and_proofs_hold_against_the_true_optimum(planner: AbstractPlanner, seed: int) -> None:
    assert_honest(planner, seed, in_place=False)


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda p: p.name)
@pytest.mark.parametrize("seed", TINY)
def test_bounds_and_proofs_hold_where_operators_run_in_place(planner: AbstractPlanner, seed: int) -> None:
    assert_honest(planner, seed, in_place=True)


def assert_honest(planner: AbstractPlanner, seed: int, *, in_place: bool) -> None:
    graph = tiny(seed, in_place)
    for percent in (90, 75, 60):
        outcome = solve(planner, Problem(graph, budget_B(graph, percent), work=2000))
        best_s = optimum_s(seed, percent, outcome.bound_class, in_place)
        if best_s is None:
            assert outcome.schedule is None
            continue
        assert outcome.status is not Status.INFEASIBLE
        assert outcome.floor_B <= budget_B(graph, percent)
        assert outcome.bound_s <= best_s + 1e-12
        if outcome.schedule is not None:
            assert simulate(graph, outcome.schedule).time_s >= best_s - 1e-12


@every_planner
def test_refusals_have_a_reason(planner: AbstractPlanner) -> None:
    graph = chain(3)
    assert planner.refuses(Problem(graph, 1)) is None
    first = graph.recipes[0]
    consuming = msgspec.structs.replace(
        first, consumes=(Takeover(first.reads[0].value),), reads=(Read(first.reads[0].value),)
    )
    graph = msgspec.structs.replace(graph, recipes=(consuming, *graph.recipes[1:]))
    assert "overwrites" in str(planner.refuses(Problem(graph, 1)))
    with pytest.raises(PlanError, match="overwrites"):
        planner.solve(Problem(graph, 1))


@every_planner
def test_watchers_see_progress(planner: AbstractPlanner) -> None:
    graph = graph_of("gpt")
    seen: list[Progress] = []
    solve(planner, Problem(graph, budget_B(graph, 60), work=3000), seen.append)
    assert seen
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)
    assert [p.bound_s for p in seen] == sorted(p.bound_s for p in seen)


@every_planner
def test_a_spent_time_limit_stops_the_search(planner: AbstractPlanner) -> None:
    graph = graph_of("gpt")
    outcome = solve(planner, Problem(graph, budget_B(graph, 55), work=10**9, time_limit_s=0.0))
    assert outcome.status in (Status.UNSOLVED, Status.FEASIBLE)
    assert outcome.stats["out_of_time"]


@every_planner
def test_ctrl_c_without_a_plan_is_raised(planner: AbstractPlanner) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    graph = graph_of("gpt")
    with pytest.raises(KeyboardInterrupt):
        solve(planner, Problem(graph, budget_B(graph, 55), work=3000), interrupt)


@pytest.mark.parametrize("planner", [Portfolio(), LocalSearch()], ids=lambda p: p.name)
def test_ctrl_c_with_a_plan_returns_it(planner: AbstractPlanner) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "annealing" and progress.time_s is not None:
            raise KeyboardInterrupt

    graph = unet()
    problem = Problem(graph, budget_B(graph, 60), work=100_000)
    outcome = planner.solve(problem, interrupt)
    assert outcome.status is Status.INTERRUPTED
    assert outcome.schedule is not None
    check(graph, outcome.schedule, problem.budget_B)


def test_ctrl_c_reaches_a_solver_at_work() -> None:
    graph = resnet((3, 8, 16, 3))
    program = stage_program(graph)
    cut = stage_cut(program, program.keep_all(0).peak_stage)
    small_B = budget_B(graph, 35)
    stop = threading.Event()

    def press() -> None:  # again and again: an interrupt that lands in a destructor is lost, as everywhere in Python
        while not stop.wait(0.2):
            signal.raise_signal(signal.SIGINT)

    presser = threading.Thread(target=press)
    interrupted = False
    presser.start()
    try:
        for _ in range(1000):  # one solve may be over before the signal comes
            cut.solve(small_B, Effort(nodes=10**6))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        stop.set()
        presser.join()
    assert interrupted
