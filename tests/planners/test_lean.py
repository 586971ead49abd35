"""Late copies: what is timed well and then made lean is legal, and takes no more of the device than before."""

from __future__ import annotations

import pytest

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Drop, Fetch, Run, Schedule, Step
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.offload.lean import lean, moves
from lowtide.planners.offload.transfers import timing
from tests.planners.offloading import linked, offloaded
from tests.planners.test_transfers import GRAPHS, there_and_back


@pytest.mark.parametrize("name", GRAPHS)
def test_lean_schedules_are_legal_and_take_no_more(name: str) -> None:
    graph = GRAPHS[name]()
    compute_s = sum(graph.recipes[r].time_s for r in graph.program)
    machine = linked(sum(v.size_B for v in graph.values) / compute_s)
    for seed, share in enumerate((1.0, 0.4)):
        naive = offloaded(graph, keep_all_schedule(graph), share, seed, apart=2 + seed)
        timed = timing(graph, naive, machine, simulate(graph, naive).peak_B)
        late = lean(graph, timed.schedule)
        check(graph, late, timed.peak_B)
        assert _runs(late) == _runs(timed.schedule)
        assert lean(graph, late) == late
        for step, after in zip(late.steps, late.steps[1:], strict=False):
            if isinstance(step, Fetch):
                assert _needs(graph, after, step.value)


def _runs(schedule: Schedule) -> list[int]:
    return [s.recipe for s in schedule.steps if isinstance(s, Run)]


def _needs(graph: Graph, step: Step, value: int) -> bool:
    """Whether a step is the one for which a value was fetched, or stands with it before that one."""
    if isinstance(step, Run):
        return value in graph.recipes[step.recipe].read_values
    return isinstance(step, Fetch | Drop)


def test_what_moves_nothing_is_as_it_was() -> None:
    graph = there_and_back((1.0,) * 4, (100,))
    kept = keep_all_schedule(graph)
    assert not moves(kept)
    assert lean(graph, kept) == kept
