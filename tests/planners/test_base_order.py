"""The order of first runs: branches one after the other, random recipes in their own order, never more bytes."""

from __future__ import annotations

import pytest

from lowtide.ir.check import check
from lowtide.ir.graph import Effect, Graph
from lowtide.ir.plan import Problem
from lowtide.planners.bounds.classes import CHOSEN_CLASS
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.smallest import smallest_budget
from tests.planners.tape import branches, random_graph


def peak_B(graph: Graph) -> int:
    return stage_program(graph).keep_all(0).peak_B


def test_branches_written_side_by_side_run_one_after_the_other() -> None:
    graph = branches(width=6, depth=3)
    ordered = base_order(graph)
    assert sorted(ordered.program) == sorted(graph.program)
    assert peak_B(ordered) < 0.8 * peak_B(graph)
    assert base_order(ordered).program == ordered.program


def test_a_plan_in_another_order_is_legal_and_says_so() -> None:
    graph = branches(width=6, depth=3)
    budget_B = peak_B(base_order(graph))
    outcome = Portfolio().solve(Problem(graph, budget_B))
    assert outcome.schedule is not None
    check(graph, outcome.schedule, budget_B)
    assert outcome.bound_class == CHOSEN_CLASS
    assert outcome.stats["winner"] == "keep_all"


def test_whoever_asks_whether_there_is_a_plan_hears_what_planning_says() -> None:
    graph = branches(width=6, depth=3)
    budget_B = peak_B(base_order(graph))
    found = FirstPlan().solve(Problem(graph, budget_B))
    assert found.schedule is not None
    check(graph, found.schedule, budget_B)
    assert found.bound_class == found.floor_class == CHOSEN_CLASS
    smallest_B = smallest_budget(Problem(graph, 0))
    assert smallest_B is not None
    assert smallest_B <= budget_B


@pytest.mark.parametrize("seed", [*range(20), 141, 199, 313])  # in the last ones an order trades floor for peak
def test_no_order_takes_more_or_moves_random_recipes(seed: int) -> None:
    graph = random_graph(seed, 24, 2)
    ordered = base_order(graph)
    assert peak_B(ordered) <= peak_B(graph)
    assert op_floor(stage_program(ordered)).floor_B <= op_floor(stage_program(graph)).floor_B
    segments = [graph.recipes[r].segment for r in ordered.program]
    assert segments == sorted(segments)
    fixed = [r for r in graph.program if graph.recipes[r].effect is not Effect.PURE]
    assert [r for r in ordered.program if graph.recipes[r].effect is not Effect.PURE] == fixed
