"""A frontier is honest at every budget, monotone, never above a method it knows, and can be stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowtide.ir.check import check
from lowtide.ir.frontier import disorder
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import Progress
from lowtide.planners.baselines import QUICK, baselines
from lowtide.planners.bounds.classes import CHOSEN_CLASS
from lowtide.planners.clock import GAP
from lowtide.planners.frontier import Pace, Solve, Solved, first_budgets, solver, trace
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
from tests.planners.brute_force import Exhaustive
from tests.planners.tape import NAMED, gpt, random_graph, unet

WORK = 1000
Watch = Callable[[Progress], None] | None


class Watched:
    """A solver that remembers what it was asked and what it answered."""

    def __init__(self, graph: Graph, solve: Solve | None = None) -> None:
        self.solve = solve or solver(graph, Portfolio(), seed=0, work=WORK)
        self.seen: list[tuple[int, Schedule | None, Outcome]] = []

    def __call__(self, budget_B: int, start: Schedule | None, limit_s: float | None, watch: Watch) -> Solved:
        solved = self.solve(budget_B, start, limit_s, watch)
        self.seen.append((budget_B, start, solved.outcome))
        return solved


@pytest.mark.parametrize("name", NAMED)
def test_points_are_monotone_legal_and_no_worse_than_their_starts(name: str) -> None:
    graph = NAMED[name]()
    asked = Watched(graph)
    record = trace(graph, points=10, solve=asked, work=WORK, methods=QUICK)
    assert disorder(record) == ""
    assert record.points[0].time_s == simulate(graph, keep_all_schedule(graph)).time_s
    assert record.points[0].budget_B == record.keep_all_B
    assert record.smallest_B == record.planned[-1].reserved_B
    assert all(p.budget_B >= record.floor_B for p in record.planned)
    assert asked.seen[0][1] is None
    for budget_B, start, outcome in asked.seen:
        assert start is not None or budget_B == record.keep_all_B
        if outcome.schedule is None:
            continue
        check(graph, outcome.schedule, budget_B)
        there = record.at(budget_B)
        assert there is not None
        assert there.time_s is not None
        assert there.time_s <= simulate(graph, outcome.schedule).time_s
        if start is not None and simulate(graph, start).peak_B <= budget_B:
            assert there.time_s <= simulate(graph, start).time_s


@pytest.mark.parametrize("seed", range(4))
def test_times_and_bounds_enclose_the_optimum(seed: int) -> None:
    graph = random_graph(seed, 6)
    record = trace(graph, points=8, work=WORK)
    for point in record.points:
        least_s = Exhaustive(base_order(graph), point.budget_B).least_time_s()
        assert least_s is None or point.bound_s <= least_s * (1 + 1e-9)
        if point.time_s is not None:
            assert least_s is not None
            assert least_s <= point.time_s * (1 + 1e-9)


def test_the_same_seed_and_work_give_the_same_frontier() -> None:
    assert trace(unet(2), points=8, work=WORK, methods=QUICK) == trace(unet(2), points=8, work=WORK, methods=QUICK)


def test_no_method_is_clearly_below_the_curve() -> None:
    graph = gpt(2)
    record = trace(graph, points=8, work=WORK, methods=QUICK)
    assert [b.name for b in record.baselines] == [p.name for p in QUICK]
    reached = [p for b in record.baselines for p in b.points]
    assert len(reached) > 5
    for other in reached:
        ours = record.at(other.budget_B)
        assert ours is not None
        assert ours.time_s is not None
        assert other.time_s is not None
        assert ours.time_s <= other.time_s * (1 + GAP)
    assert all(b.points or b.reason for b in record.baselines)


@pytest.mark.parametrize("seed", [2, 8, 9])
def test_no_method_is_below_the_bound_where_another_order_was_chosen(seed: int) -> None:
    graph = next(
        g for g in (random_graph(s, 16, 2, s % 2 == 0) for s in range(10 * seed, 1000)) if base_order(g) is not g
    )
    record = trace(graph, points=4, work=200, methods=QUICK)
    assert record.bound_class == CHOSEN_CLASS
    for other in (p for b in record.baselines for p in b.points):
        assert other.time_s is not None
        bounds = [p.bound_s for p in record.points if p.budget_B >= other.budget_B]
        assert other.time_s >= max(bounds, default=0.0) * (1 - 1e-9)


def test_methods_stand_at_what_their_plans_need() -> None:
    graph = unet(2)
    whole_B = simulate(graph, keep_all_schedule(graph)).peak_B
    for asked in baselines(graph, [whole_B * share // 10 for share in range(3, 10)], fixed_B=100):
        peaks_B = [simulate(graph, s).peak_B + 100 for s in asked.schedules]
        assert [p.budget_B for p in asked.baseline.points] == peaks_B
        assert peaks_B == sorted(set(peaks_B), reverse=True)


def test_bytes_outside_the_graph_shift_budgets_and_nothing_else() -> None:
    graph = unet(2)
    bare, shifted = (trace(graph, points=6, work=WORK, fixed_B=fixed_B) for fixed_B in (0, 1000))
    # Budgets that follow from the floor are rounded, so they are compared where they are the same.
    assert shifted.floor_B == bare.floor_B + 1000
    assert shifted.keep_all_B == bare.keep_all_B + 1000
    assert shifted.points[0].time_s == bare.points[0].time_s
    assert all(p.reserved_B is not None and p.reserved_B <= p.budget_B for p in shifted.planned)


def test_first_budgets_are_those_most_wanted() -> None:
    assert first_budgets(1000, 2000, 3) == [1250, 1100, 1050]
    many = first_budgets(1000, 9000, 20)
    assert many == sorted(many, reverse=True)
    assert {1050, 1100, 3000, 5000, 7000} <= set(many)
    assert first_budgets(1000, 1001, 20) in ([], [1000])


def test_no_time_leaves_keep_all_and_says_so() -> None:
    record = trace(gpt(2), points=8, work=WORK, time_limit_s=0.0)
    assert record.stopped == "time limit"
    assert [p.overhead for p in record.points] == [0.0]
    assert record.floor_B > 0


def _breaking(graph: Graph, calls: int) -> Solve:
    solve = solver(graph, Portfolio(), seed=0, work=WORK)
    left = iter(range(calls))

    def stop(budget_B: int, start: Schedule | None, limit_s: float | None, watch: Watch) -> Solved:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return solve(budget_B, start, limit_s, watch)

    return stop


def test_an_interruption_keeps_the_points_so_far() -> None:
    graph = gpt(2)
    record = trace(graph, points=8, solve=_breaking(graph, 3), work=WORK, methods=QUICK)
    assert record.stopped == "interrupted"
    assert len(record.points) == 3
    assert disorder(record) == ""
    with pytest.raises(KeyboardInterrupt):
        trace(graph, solve=_breaking(graph, 0))


def test_a_solve_that_was_interrupted_is_the_last() -> None:
    graph = gpt(2)
    told: list[Pace] = []

    def watch(pace: Pace) -> None:
        told.append(pace)
        if pace.planning is not None and pace.planning.stage == "single_cut":
            raise KeyboardInterrupt

    record = trace(graph, points=8, work=WORK, watch=watch)
    assert record.stopped == "interrupted"
    assert record.points[-1].status == Status.INTERRUPTED.name
    assert told[0].number == 1
    assert {pace.points for pace in told} == {8}


def test_an_interruption_while_others_are_asked_keeps_the_curve() -> None:
    def watch(pace: Pace) -> None:
        if pace.method == QUICK[2].name:
            raise KeyboardInterrupt

    record = trace(gpt(2), points=4, work=WORK, methods=QUICK, watch=watch)
    assert record.stopped == "interrupted"
    assert [b.name for b in record.baselines] == [p.name for p in QUICK[:2]]
    assert len(record.points) >= 4
