"""Whatever a retention of a random graph offloads, its schedule is legal and lives in the bytes that it says."""

from __future__ import annotations

import random

from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lowtide.errors import PlanError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed, movable_values
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.reductions.stages import refuses_stages, stage_program
from tests.ir.graphs import graphs
from tests.planners.test_fetches import assert_moves
from tests.planners.test_retention import assert_same, random_change

DICE = st.integers(0, 10**6).map(random.Random)


def with_host_resident(graph: Graph, dice: random.Random) -> Graph:
    """Any persistent value that no limit bars may live on the host, with what overwrites it."""
    host_resident = {
        t.value: r.outputs[t.output]
        for r in (graph.recipes[k] for k in graph.program)
        for t in r.consumes
        if t.output is not None and graph.values[t.value].persistent
    }
    values = list(graph.values)
    for value in graph.values:
        if value.persistent and value.readable_through is None:
            values[value.id] = replace(value, movable=True)
            if value.id in host_resident:
                values[host_resident[value.id]] = replace(values[host_resident[value.id]], replaces=value.id)
    movable = replace(graph, values=tuple(values))
    return housed(movable, [v for v in movable_values(movable) if dice.random() < 0.5])


@settings(max_examples=30, deadline=None)
@given(graphs(), DICE)
def test_any_retention_is_a_legal_schedule(plain: Graph, dice: random.Random) -> None:
    graph = with_host_resident(plain, dice)
    assume(refuses_stages(graph, offload=True) is None)
    assume(not any(v.arrives is not None and graph.producers[v.id] for v in graph.values))  # not one stage program's
    movable = [v for v in sorted(fetchable_values(graph, 1)) if dice.random() < 0.8]
    try:
        reduced = stage_program(graph, movable=movable)
    except PlanError:  # what is read was freed for good
        reject()
    state = reduced.keep_all(0)
    for _ in range(6):
        assert_same(reduced, state)
        schedule = reduced.lift(state)
        exact = all(r.state is None for r in graph.recipes)  # states of the generator are set aside beforehand
        check(graph, schedule, budget_B=state.peak_B if exact else None)
        assert_moves(reduced, state, schedule)
        if state.apply(*random_change(reduced.core, dice)):
            state.commit()
