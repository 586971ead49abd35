"""The plan for the fewest bytes: away whenever it can be, overwritten where that helps, with the least options."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lowtide.ir.call import Read
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Takeover, Value
from lowtide.ir.housing import housed, movable_values
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import Run
from lowtide.planners.offload.extremes import least_away, retention_away
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import StageProgram, stage_program
from tests.planners.menus import random_menu
from tests.planners.offloading import linked
from tests.planners.tape import NAMED
from tests.planners.training import with_updates

B = 1000


def smallest(graph: Graph) -> Outcome:
    """What is said of a budget of one byte."""
    return Portfolio().solve(Problem(graph, 1, work=500, machine=linked(1e9), host_budget_B=None))


def all_movable(graph: Graph) -> StageProgram:
    return stage_program(housed(graph, movable_values(graph)), movable=fetchable_values(graph, 1))


def written_over() -> Graph:
    """The second value comes of the first, the third of both, over the first if need be, which is read once more."""
    sizes_B = (B, B, B, 0)
    values = tuple(Value(i, f"v{i}", size_B, Role.ACTIVATION) for i, size_B in enumerate(sizes_B))
    reads = ((), (0,), (0, 1), (0, 2))
    recipes = [
        Recipe(i, f"run{i}", (i,), tuple(map(Read, read)), time_s=1.0, trace=MiniTrace((sizes_B[i],), (0,)))
        for i, read in enumerate(reads)
    ]
    over = replace(recipes[2], id=4, consumes=(Takeover(0, 0),), trace=MiniTrace((), (None,)))
    last = replace(values[3], role=Role.OUTPUT, leaves=0)
    return Graph((*values[:3], last), (*recipes, over), (0, 1, 2, 3), (Segment("step"),))


def test_what_is_written_over_is_recomputed() -> None:
    program = all_movable(written_over())
    away, least = program.keep_all(0), program.keep_all(0)
    assert away.assign(retention_away(program))
    assert least.assign(least_away(program))
    assert (away.peak_B, least.peak_B) == (3 * B, 2 * B)
    schedule = program.lift(least)
    check(program.graph, schedule, 2 * B)
    assert [s.recipe for s in schedule.steps if isinstance(s, Run)] == [0, 1, 4, 0, 3]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_nothing_takes_more_than_everything_away(name: str) -> None:
    program = all_movable(with_updates(NAMED[name](), 1))
    away, least = program.keep_all(0), program.keep_all(0)
    assert away.assign(retention_away(program))
    assert least.assign(least_away(program))
    assert least.peak_B <= away.peak_B


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_the_options_that_take_least_set_the_smallest_budget(seed: int) -> None:
    graph = random_menu(seed, 10, 1 + seed % 2)
    chosen, fixed = smallest(graph), smallest(replace(graph, groups=()))
    assert chosen.smallest_B is not None
    assert fixed.smallest_B is not None
    assert chosen.smallest is not None
    assert chosen.smallest_B <= fixed.smallest_B - (0 if seed == 4 else 1)
    assert chosen.floor_B <= chosen.smallest_B
    check(housed(graph, chosen.hosted), chosen.smallest, chosen.smallest_B)
