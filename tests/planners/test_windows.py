"""Re-optimisation never worsens an incumbent, stays legal, and is the same for a seed."""

from __future__ import annotations

import random

import pytest

from lowtide.ir.check import check
from lowtide.ir.plan import Problem
from lowtide.planners.greedy import descend
from lowtide.planners.reductions.twins import twin_gaps
from lowtide.planners.search import Search
from lowtide.planners.windows import reoptimise, window
from tests.planners.tape import NAMED, chain


@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "bundle"])
@pytest.mark.parametrize("twins", [False, True])
def test_plans_get_no_slower_and_repeat_for_a_seed(name: str, twins: bool) -> None:
    graph, found = NAMED[name](), []
    for _ in range(2):
        search = Search(Problem(graph, 2**60))
        search = Search(Problem(graph, search.program.keep_all(0).peak_B * 7 // 10))
        descend(search)
        assert search.time_ps is not None
        before_ps = search.time_ps
        reoptimise(search, 3000, seed=1, twins=twin_gaps(search.program) if twins else None)
        assert search.time_ps <= before_ps
        check(graph, search.program.lift(search.retention()), search.problem.budget_B)
        assert search.taus is not None
        found.append((search.time_ps, search.taus.tolist()))
    assert found[0] == found[1]


def test_a_greedy_plan_gets_faster_and_windows_lie_inside_the_step() -> None:
    graph = NAMED["gpt"]()
    search = Search(Problem(graph, 2**60))
    search = Search(Problem(graph, search.program.keep_all(0).peak_B * 6 // 10))
    descend(search)
    before_ps, dice = search.time_ps, random.Random(0)
    assert before_ps is not None
    for number in range(20):
        first, last = window(search, search.retention(), number, dice)
        assert 0 <= first <= last < len(search.program.stages)
    reoptimise(search, 12_000, seed=0)
    assert search.time_ps is not None
    assert search.time_ps < before_ps


def test_without_an_incumbent_nothing_happens() -> None:
    search = Search(Problem(chain(10), 10))
    reoptimise(search, 1000, seed=0)
    assert search.time_ps is None
    assert search.work == 0
