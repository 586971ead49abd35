"""A gradient that goes straight from one part's backward to another's keeps its address until that one drops it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lowtide.errors import IllegalPlan
from lowtide.ir.bundle import Part, merge
from lowtide.ir.check import check
from lowtide.ir.layout import Layout
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule
from lowtide.ir.sequence import blocks_of
from lowtide.placers.addresses import lay_out
from lowtide.planners.keep_all import keep_all_schedule
from tests.report.plan_records import GA, TANGENT, graph

GRADIENT = GA  # of the second part, as if the first part's output were its input


def bundle():  # type: ignore[no-untyped-def]
    """Two parts: the second one's gradient arrives as the first one's tangent."""
    second = graph()
    values = tuple(replace(v, leaves=1, held=False) if v.id == GRADIENT else v for v in second.values)
    return merge(
        [
            Part(graph()),
            Part(replace(second, values=values), released=frozenset({GRADIENT}), handed=((GRADIENT, (0, TANGENT)),)),
        ]
    )


def test_its_block_lives_until_the_tangent_is_dropped() -> None:
    merged = bundle().graph
    schedule = keep_all_schedule(merged)
    gradient = len(graph().values) + GRADIENT
    (block,) = [b for b in blocks_of(merged, schedule) if b.value == gradient]
    drop = next(i for i, s in enumerate(schedule.steps) if s == Drop(TANGENT))
    later = [b.start for b in blocks_of(merged, schedule) if b.step > drop]
    begun = next(i for i, s in enumerate(schedule.steps) if s == Boundary(merged.values[TANGENT].arrives or 0))
    during = [b.start for b in blocks_of(merged, schedule) if begun < b.step < drop]
    assert all(start < block.stop for start in during)
    assert all(start > block.stop for start in later)
    assert merged.handed == {TANGENT}


def test_the_checker_finds_that_out_for_itself() -> None:
    merged = bundle().graph
    schedule = keep_all_schedule(merged)
    layout = lay_out(merged, schedule)
    check(merged, schedule, layout=layout)
    forgetful = replace(merged, values=tuple(replace(v, handed_to=None) for v in merged.values))
    packed = lay_out(forgetful, schedule)
    blocks = list(packed.blocks)
    gradient = next(i for i, b in enumerate(blocks) if b.value == len(graph().values) + GRADIENT)
    begun = next(i for i, s in enumerate(schedule.steps) if s == Boundary(merged.values[TANGENT].arrives or 0))
    first = next(i for i, b in enumerate(blocks) if b.step > begun)
    offsets = list(packed.offsets_B)
    offsets[first] = offsets[gradient]
    clash = Layout(packed.blocks, tuple(offsets), packed.height_B * 2, packed.live_B)
    assert isinstance(schedule.steps[blocks[first].step], Run)
    with pytest.raises(IllegalPlan, match=r"overlap|bytes of its own"):
        check(merged, schedule, layout=clash)


def test_one_that_is_dropped_and_recomputed_is_handed_over_once() -> None:
    merged = bundle().graph
    gradient = len(graph().values) + GRADIENT
    steps = list(keep_all_schedule(merged).steps)
    made = next(i for i, s in enumerate(steps) if isinstance(s, Run) and gradient in s.keep)
    steps[made + 1 : made + 1] = [Drop(gradient), steps[made]]
    schedule = Schedule(tuple(steps))
    layout = lay_out(merged, schedule)
    first, second = (i for i, b in enumerate(layout.blocks) if b.value == gradient)
    offsets = list(layout.offsets_B)
    offsets[first] = offsets[second]  # nothing else is made between the two
    check(merged, schedule, layout=replace(layout, offsets_B=tuple(offsets)))


def test_it_can_only_be_handed_on_to_what_arrives_later() -> None:
    merged = bundle().graph
    gradient = len(graph().values) + GRADIENT
    for wrong in (gradient, 10_000):
        values = tuple(replace(v, handed_to=wrong) if v.id == gradient else v for v in merged.values)
        with pytest.raises(IllegalPlan, match="handed to value"):
            check(replace(merged, values=values), keep_all_schedule(merged))
