"""A graph with fewer implementations: what is kept, what goes with what, and how ids close up."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, Takeover
from lowtide.ir.in_place import in_place_candidates
from lowtide.ir.numerics import Numerics
from lowtide.planners.implementations.menu import restricted
from tests.planners.candidates import with_candidates
from tests.planners.menus import with_backwards
from tests.planners.tape import resnet


def menu() -> Graph:
    """Rectifiers backward from input, or from a packed mask at level lossy; batch norms from the output."""
    graph = with_backwards(resnet((1, 1, 1, 1)))
    groups = []
    for group in graph.groups:
        options = group.options
        if len(options) == 3:
            options = (*options[:2], replace(options[2], numerics=Numerics.LOSSY))
        groups.append(replace(group, options=options, kind="saved values" if len(options) == 3 else "algorithms"))
    return replace(graph, groups=tuple(groups))


def test_options_above_the_level_go_with_what_they_alone_make() -> None:
    graph = menu()
    less = restricted(graph, Numerics.EXACT)
    check_graph(less)
    assert [len(g.options) for g in less.groups] == [2] * len(graph.groups)
    packed = sum(len(g.options) == 3 for g in graph.groups)
    assert packed > 4
    assert len(less.recipes) == len(graph.recipes) - 2 * packed
    assert len(less.values) == len(graph.values) - packed
    assert restricted(graph, Numerics.LOSSY) == graph


def test_kinds_and_families_are_left_out_and_what_has_no_choice_is_no_group() -> None:
    graph = menu()
    less = restricted(graph, Numerics.LOSSY, ("algorithms",))
    check_graph(less)
    assert {g.kind for g in less.groups} == {"saved values"}
    none = restricted(graph, Numerics.LOSSY, ("group",))
    check_graph(none)
    assert not none.groups
    assert none.recipes == graph.recipes[: len(none.recipes)]
    assert none.program == graph.program


def test_ways_in_place_go_with_what_they_stand_for() -> None:
    plain = menu()
    graph = with_candidates(plain, ("relu", "add"))
    other = next(plain.recipes[o.recipes[-1]] for g in plain.groups for o in g.options[1:2])
    gradient = other.reads[0].value
    twin = replace(other, id=len(graph.recipes), consumes=(Takeover(gradient, 0),))
    trace = replace(twin.trace, events=twin.trace.events[1:], outputs=(None, *twin.trace.outputs[1:]))
    graph = replace(graph, recipes=(*graph.recipes, replace(twin, trace=trace)))
    assert other.id in in_place_candidates(graph)
    assert not any(r.consumes for r in restricted(graph, Numerics.LOSSY, ("in-place",)).recipes)
    without = restricted(graph, Numerics.LOSSY, ("saved values", "algorithms"))
    check_graph(without)
    assert sum(bool(r.consumes) for r in without.recipes) == sum(bool(r.consumes) for r in graph.recipes) - 1
