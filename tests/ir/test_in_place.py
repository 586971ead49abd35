"""What may run in place of what, and where the bytes are that passed on."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.errors import IllegalPlan
from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Role
from lowtide.ir.in_place import in_place_candidates, plain_candidates
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule
from lowtide.ir.sequence import blocks_of
from tests.ir.layouts import stacked
from tests.ir.sketch import Sketch


def _rectified(**facts: object) -> Sketch:
    """x -> a -> b, the second recipe with two candidates."""
    sketch = Sketch()
    x = sketch.persistent(40, Role.INPUT, "x")
    a, b = sketch.value(40, name="a", **facts), sketch.value(40, Role.OUTPUT, "b", leaves=0)
    sketch.recipe("linear", [x], [a])
    sketch.again(sketch.recipe("relu", [a], [b]), consumes=[(a, 0)])
    return sketch


def test_a_candidate_stands_for_the_recipe_that_does_the_same() -> None:
    graph = _rectified().build()
    assert in_place_candidates(graph) == {1: (2,)}
    assert plain_candidates(graph) == {2: 1}


def test_what_belongs_to_the_caller_or_to_a_group_is_no_candidate() -> None:
    assert in_place_candidates(_rectified(leaves=0).build()) == {}
    grouped = _rectified()
    grouped.group("relu", [1], [2])
    assert in_place_candidates(grouped.build()) == {}
    sketch = Sketch()
    x, y = sketch.value(8, Role.INPUT, "x", arrives=0), sketch.value(8, name="y")
    sketch.again(sketch.recipe("relu", [x], [y]), consumes=[(x, 0)])
    assert in_place_candidates(sketch.build()) == {}


def test_of_two_that_do_the_same_the_program_s_own_is_meant() -> None:
    sketch = _rectified()
    sketch.again(1)
    graph = sketch.build()
    assert in_place_candidates(graph) == {1: (2,), 3: (2,)}
    assert plain_candidates(graph) == {2: 1}


def _handed() -> tuple[Graph, list[Boundary | Run | Drop]]:
    """A gradient is scaled in place in the first part, and goes straight to the second, which makes a temporary."""
    sketch = Sketch(parts=(0, 1))
    x = sketch.persistent(8, Role.INPUT, "x")
    raw = sketch.value(64, name="raw")
    sketch.recipe("backward", [x], [raw])
    arrived = sketch.value(64, Role.TANGENT, "arrived", arrives=1)
    grad = sketch.value(64, Role.GRADIENT, "grad", leaves=0, held=False, handed_to=arrived)
    sketch.again(sketch.recipe("scale", [raw], [grad]), consumes=[(raw, 0)])
    out = sketch.value(64, Role.GRADIENT, "out", leaves=1)
    sketch.recipe("last", [arrived], [out], segment=1)
    steps = [Boundary(0), Run(0, (raw,)), Run(2, (grad,)), Boundary(1), Run(3, (out,)), Drop(arrived)]
    return sketch.build(), steps


def test_bytes_taken_over_are_held_until_their_last_holder_frees_them() -> None:
    graph, steps = _handed()
    check_graph(graph)
    schedule = Schedule(tuple(steps))
    layout = stacked(graph, schedule)
    check(graph, schedule, layout=layout)
    kept, made = blocks_of(graph, schedule, small_B=0)
    assert kept.stop > made.start
    same = msgspec.structs.replace(layout, offsets_B=(0, 0), height_B=64)
    with pytest.raises(IllegalPlan, match="'overlap'"):
        check(graph, schedule, layout=same)


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "dense"),
    [
        ((4, 3), (3, 1), 0, True),
        ((4, 3), (1, 4), 0, True),
        ((4, 1, 3), (3, 99, 1), 0, True),
        ((4, 3), (4, 1), 0, False),
        ((4, 3), (0, 1), 0, False),
        ((4, 3), (3, 1), 2, False),
        ((), (), 0, True),
    ],
)
def test_dense_storages_have_no_holes(
    shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dense: bool
) -> None:
    assert Geometry("float32", shape, stride, offset).is_dense is dense
