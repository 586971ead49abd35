"""Parts of a merged graph are found again, whatever implementations they have got or lost."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.bundle import Part, merge, unmerged
from lowtide.ir.graph import Graph
from lowtide.planners.keep_all import keep_all_schedule
from tests.report.plan_records import A, graph


def shorter() -> Graph:
    """One segment with one recipe; nothing is trained."""
    whole = graph()
    values = (*whole.values[:A], replace(whole.values[A], leaves=0))
    return Graph(values, whole.recipes[:1], (0,), whole.segments[:1])


def test_parts_are_found_again() -> None:
    parts = [Part(graph()), Part(shorter()), Part(graph())]
    made = merge(parts)
    found = unmerged(made.graph)
    assert (found.values, found.recipes, found.segments) == (made.values, made.recipes, made.segments)
    for index, part in enumerate(parts):
        back = found.graph_of(index)
        assert back.recipes == part.graph.recipes
        assert back.program == part.graph.program
        assert [v.leaves for v in back.values] == [v.leaves for v in part.graph.values]
        assert [v.arrives for v in back.values] == [v.arrives for v in part.graph.values]


def test_a_schedule_comes_apart_in_the_ids_of_each_part() -> None:
    made = merge([Part(graph()), Part(graph())])
    schedule = keep_all_schedule(made.graph)
    assert unmerged(made.graph).schedule_of(schedule, 1) == keep_all_schedule(graph())
