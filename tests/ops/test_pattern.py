"""Patterns are found where a program computes them, in either order where that is the same, and nowhere else."""

from __future__ import annotations

import pytest

from lowtide.ir.call import Read, Ref
from lowtide.ir.graph import Graph
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.pattern import Call, Either, Match, Variable, matches
from tests.ir.sketch import Sketch

A, B = Variable("a"), Variable("b")


def product(*factors: Variable | Call, shared: bool = False) -> Call:
    return Call(("mul",), factors, "product", commutes=True, shared=shared)


def program(*calls: tuple[str, tuple[int | float, ...]], held: tuple[int, ...] = ()) -> Graph:
    """Values 0 and 1 are there; each call reads values (integers) and constants (floats), and makes the next value."""
    sketch = Sketch()
    for _ in range(2):
        sketch.persistent(4)
    for op, arguments in calls:
        reads = [a for a in arguments if isinstance(a, int)]
        args = tuple(Ref(reads.index(a)) if isinstance(a, int) else a for a in arguments)
        sketch.recipe(op, reads, [sketch.value(4)], args=args)
    for value in held:
        sketch.change(value, leaves=0)
    return sketch.build()


def found(graph: Graph, pattern: Call, **known: Read) -> list[Match]:
    return list(matches(GraphBuilder(graph), pattern, known))


def values(match: Match) -> dict[str, int]:
    return {name: read.value for name, read in match.found.items() if isinstance(read, Read)}


def test_variables_stand_for_what_is_read_and_constants_for_themselves() -> None:
    graph = program(("mul", (0, 1)), ("pow", (2, 3.0)))
    match, turned = found(graph, Call(("pow",), (product(A, B), 3.0)))
    assert values(match) == {"a": 0, "b": 1, "product": 2}
    assert values(turned) == {"a": 1, "b": 0, "product": 2}
    assert match.recipes == turned.recipes == (0, 1)
    assert not found(graph, Call(("pow",), (product(A, B), 2.0)))
    assert match.read("exponent") is None


def test_a_variable_is_the_same_everywhere() -> None:
    square = Call(("mul",), (A, A))
    assert not found(program(("mul", (0, 1))), square)
    assert len(found(program(("mul", (0, 0))), square)) == 1


def test_arguments_may_come_in_either_order_where_the_call_says_so() -> None:
    graph = program(("pow", (1, 2.0)), ("mul", (2, 0)))
    squared = Call(("pow",), (B, 2.0))
    assert not found(graph, Call(("mul",), (A, squared)))
    (match,) = found(graph, Call(("mul",), (A, squared), commutes=True))
    assert values(match) == {"a": 0, "b": 1}


def test_what_is_known_narrows_the_search() -> None:
    graph = program(("mul", (0, 1)), ("mul", (1, 1)))
    builder = GraphBuilder(graph)
    (match,) = found(graph, Call(("mul",), (A, B)), a=builder.read(0))
    assert match.recipes == (0,)


def test_each_of_several_patterns_may_match() -> None:
    term = Either((product(A, B), A))
    assert len(found(program(("mul", (0, 1)), ("exp", (2,))), Call(("exp",), (term,)))) == 3  # two orders, and whole
    assert len(found(program(("exp", (0,))), Call(("exp",), (term,)))) == 1


@pytest.mark.parametrize("use", ["read by another", "handed to the caller"])
def test_what_is_used_elsewhere_is_no_part_of_a_match_unless_it_is_shared(use: str) -> None:
    calls = [("mul", (0, 1)), ("exp", (2,))]
    graph = program(*calls, ("log", (2,))) if use == "read by another" else program(*calls, held=(2,))
    assert not found(graph, Call(("exp",), (Call(("mul",), (A, B)),)))
    (match,) = found(graph, Call(("exp",), (Call(("mul",), (A, B), shared=True),)))
    assert match.recipes == (1,)
