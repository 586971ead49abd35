"""Windows lie inside the step, where much is recomputed or memory is short, and are the same for a seed."""

from __future__ import annotations

import random

import pytest

from lowtide.ir.plan import Problem
from lowtide.planners.annealing import window
from lowtide.planners.greedy import descend
from lowtide.planners.search import Search
from tests.planners.tape import NAMED


@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "bundle"])
def test_windows_lie_inside_the_step_where_something_is_to_be_gained(name: str) -> None:
    graph = NAMED[name]()
    search = Search(Problem(graph, 2**60))
    search = Search(Problem(graph, search.program.keep_all(0).peak_B * 6 // 10))
    descend(search)
    state = search.state()
    begin, _ = state.recomputations()
    busy = {t for t in range(len(search.program.stages)) if begin[t] < begin[t + 1]}
    busy |= {t for t, live_B in enumerate(state.live_B().tolist()) if live_B >= 0.98 * search.budget_B}
    drawn = []
    for _ in range(2):
        dice = random.Random(0)
        drawn.append([window(search, state, number, dice) for number in range(20)])
    assert drawn[0] == drawn[1]
    for first, last in drawn[0]:
        assert 0 <= first <= last < len(search.program.stages)
        assert not busy or not busy.isdisjoint(range(first, last + 1))
