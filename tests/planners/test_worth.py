"""How long a search may last: as long as training can pay it back."""

from __future__ import annotations

import pytest

from lowtide.ir.plan import DEFAULT_WORK, Problem
from lowtide.ir.simulate import simulate
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.search import STEPS, worth_s
from tests.planners.menus import MENUS


def test_what_may_be_gained_in_training_is_worth_searching_for() -> None:
    assert worth_s(3e9, 1e9, DEFAULT_WORK) == 2e-3 * STEPS
    assert worth_s(3e9, 1e9, 2 * DEFAULT_WORK) == 4e-3 * STEPS
    assert worth_s(1e9, 1e9, DEFAULT_WORK) == 0.0


@pytest.mark.parametrize("name", MENUS)
def test_with_little_work_few_choices_are_asked(name: str) -> None:
    """Where there is a plan to begin with, no question follows the one that uses the work up."""
    graph = MENUS[name]()
    budget_B = int(0.8 * simulate(graph, keep_all_schedule(graph)).peak_B)
    begun = FirstPlan().solve(Problem(graph, budget_B)).schedule
    assert begun is not None
    asked = {}
    for work in (100, 100_000):
        stats = Portfolio().solve(Problem(graph, budget_B, work=work, start=begun)).stats
        asked[work] = stats.get("joint_cuts", 0) + stats.get("flips", 0)
    assert asked[100] <= min(1, asked[100_000])
