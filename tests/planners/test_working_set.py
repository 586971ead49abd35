"""The floor for plans that offload holds whatever implementations are chosen."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from lowtide.errors import PlanError
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import HOST_ENGINE
from lowtide.planners.bounds.floors import working_set
from lowtide.planners.implementations.candidates import all_candidates
from lowtide.planners.implementations.choice import choose
from tests.planners.menus import MENUS, every_choice, random_menu
from tests.planners.tape import NAMED
from tests.planners.training import with_updates

GRAPHS: dict[str, Callable[[], Graph]] = {**MENUS, **{f"random{s}": (lambda s=s: random_menu(s)) for s in range(30)}}


def floors_B(graph: Graph) -> list[int]:
    """Of the programs of some choices, each by itself."""
    found = []
    for choice in itertools.islice(every_choice(graph), 200):
        try:
            found.append(working_set(choose(graph, choice)).floor_B)
        except PlanError:
            continue
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_no_choice_lives_in_less(name: str) -> None:
    graph = GRAPHS[name]()
    assert working_set(graph, candidates=all_candidates(graph)).floor_B <= min(floors_B(graph))


def test_the_floor_of_the_programs_own_is_not_one_of_all() -> None:
    graphs = [make() for make in GRAPHS.values()]
    assert any(working_set(graph).floor_B > min(floors_B(graph)) for graph in graphs)


def test_an_update_that_the_host_can_do_sets_no_floor() -> None:
    graph = with_updates(NAMED["gpt"](), states=40)
    updates = [r for r in graph.recipes if r.consumes]
    twins = [replace(r, id=len(graph.recipes) + i, engine=HOST_ENGINE) for i, r in enumerate(updates)]
    either = replace(graph, recipes=(*graph.recipes, *twins))
    device = working_set(graph, persistent_may_move=True)
    assert graph.recipes[device.recipes[0]] in updates
    assert working_set(either, persistent_may_move=True).floor_B < device.floor_B
    assert working_set(either).floor_B == working_set(graph).floor_B
