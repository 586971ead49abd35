"""A value that the caller frees, and that nothing reads afterwards: the gradient of an output across a break."""

from __future__ import annotations

import pytest

from lowtide.ir.call import Read, Ref
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Value
from lowtide.ir.plan import Problem, Status
from lowtide.ir.simulate import simulate
from lowtide.planners.catalogue import CLASSICS, PLANNERS


def graph() -> Graph:
    """x -> a (forward); a -> g (backward), handed over and freed there."""
    values = (
        Value(0, "x", 8, Role.INPUT, arrives=0, persistent=True),
        Value(1, "a", 8, Role.ACTIVATION),
        Value(2, "g", 8, Role.GRADIENT, leaves=1, held=False),
    )
    recipes = (
        Recipe(0, "f", (1,), (Read(0),), ((),), (Ref(0),), time_s=1.0, trace=MiniTrace((8,), (0,))),
        Recipe(1, "b", (2,), (Read(1),), ((),), (Ref(0),), segment=1, time_s=1.0, trace=MiniTrace((8,), (0,))),
    )
    return Graph(values, recipes, (0, 1), (Segment("forward"), Segment("backward")))


@pytest.mark.parametrize("planner", [*PLANNERS, *CLASSICS], ids=lambda p: p.name)
def test_plans_what_is_let_go(planner: object) -> None:
    if reason := planner.refuses(Problem(graph(), 24)):  # type: ignore[attr-defined]
        pytest.skip(reason)
    outcome = planner.solve(Problem(graph(), 24))  # type: ignore[attr-defined]
    assert outcome.status in (Status.OPTIMAL, Status.FEASIBLE)
    check(graph(), outcome.schedule, 24)
    assert simulate(graph(), outcome.schedule).peak_B == 24
