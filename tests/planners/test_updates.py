"""Steps of training that overwrite weights and optimizer state: their bytes count once, the old is read no more."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Run
from lowtide.ir.simulate import simulate
from lowtide.planners.reductions.stages import stage_program
from tests.planners.tape import chain, gpt, unet
from tests.planners.test_retention import assert_same, random_change
from tests.planners.training import with_updates

STEPS = {
    "chain": lambda: with_updates(chain(5)),
    "chain-at-end": lambda: with_updates(chain(5), at_end=True, merged=True),
    "gpt": lambda: with_updates(gpt(1), states=2),
    "unet": lambda: with_updates(unet(2), states=0),
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_what_an_update_makes_takes_no_new_bytes(make) -> None:
    graph = make()
    reduced = stage_program(graph)
    state = reduced.keep_all(0)
    schedule = reduced.lift(state)
    check(graph, schedule, budget_B=state.peak_B)
    assert simulate(graph, schedule).peak_B == state.peak_B
    made = {v.id for v in graph.values if v.replaces is not None}
    kept = {v for s in schedule.steps if isinstance(s, Run) for v in s.keep}
    assert made <= kept


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_nothing_that_reads_a_weight_runs_behind_its_update(make) -> None:
    graph = make()
    reduced = stage_program(graph)
    dice = random.Random(1)
    state = reduced.keep_all(0)
    for _ in range(40):
        gaps, retention = random_change(reduced.core, dice)
        if state.apply(gaps, retention):
            state.commit()
        assert_same(reduced, state)
        check(graph, reduced.lift(state), budget_B=state.peak_B + reduced.reserve_B)
    assert any(state.recomputations()[1].tolist())


def test_a_reader_may_be_recomputed_before_the_update_in_the_very_stage() -> None:
    graph = with_updates(chain(4))
    reduced = stage_program(graph)
    updated_at = _updated_at(graph)
    place = {s.recipe: t for t, s in enumerate(reduced.stages)}
    for t, stage in enumerate(reduced.stages):
        if stage.recipe >= 0 and stage.recompute_through >= 0:
            reads = graph.recipes[stage.recipe].read_values
            limits = [place[updated_at[v]] for v in reads if v in updated_at]
            assert stage.recompute_through == min([len(reduced.stages) - 1, *limits])
            assert stage.recompute_through > t or not limits
    assert np.all([reduced.stages[place[r]].recompute_through == -1 for r in updated_at.values()])


def _updated_at(graph: Graph) -> dict[int, int]:
    runs = (graph.recipes[r] for r in graph.program)
    return dict(itertools.chain.from_iterable(((t.value, r.id) for t in r.consumes) for r in runs))
