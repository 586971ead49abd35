"""Patterns are found where a program computes them, in either order where that is the same, and nowhere else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lowtide.ir.call import Read, Ref, View
from lowtide.ir.graph import Graph, Recipe
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.pattern import Call, Either, Match, Named, Through, Variable, matches
from tests.ir.sketch import Sketch

A, B = Variable("a"), Variable("b")


def product(*factors: Variable | Call, shared: bool = False) -> Call:
    return Call(("mul",), factors, commutes=True, shared=shared)


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
    return list(matches(GraphBuilder(graph), pattern, known=known))


def values(match: Match) -> dict[str, int]:
    return {name: read.value for name, read in match.found.items() if isinstance(read, Read)}


def test_variables_stand_for_what_is_read_and_constants_for_themselves() -> None:
    graph = program(("mul", (0, 1)), ("pow", (2, 3.0)))
    match, turned = found(graph, Call(("pow",), (Named("product", product(A, B)), 3.0)))
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


def test_recipes_of_one_argument_may_lie_in_between() -> None:
    graph = program(("exp", (0,)), ("copy", (2,)), ("copy", (3,)), ("log", (4,)))

    def copies(_: GraphBuilder, recipe: Recipe) -> bool:
        return recipe.op == "copy"

    (match,) = found(graph, Call(("log",), (Through(copies, Call(("exp",), (A,))),)))
    assert match.recipes == (0, 1, 2, 3)
    assert not found(graph, Call(("log",), (Through(copies, Call(("exp",), (A,)), most=1),)))
    assert not found(graph, Call(("log",), (Call(("exp",), (A,)),)))


def test_several_patterns_share_variables_and_what_they_compute() -> None:
    graph = program(("exp", (0,)), ("log", (2,)), ("sin", (2,)), ("exp", (1,)), ("log", (5,)))
    shared = Named("shared", Call(("exp",), (A,)))
    patterns = Call(("log",), (shared,)), Call(("sin",), (Variable("shared"),))
    (match,) = matches(GraphBuilder(graph), *patterns)
    assert match.recipes == (0, 1, 2)
    assert [root.op for root in match.roots] == ["log", "sin"]
    assert [m.recipes for m in matches(GraphBuilder(graph), patterns[0])] == [(3, 4)]  # the other is read by sin, too


def test_a_link_says_how_results_have_to_be_read() -> None:
    graph = program(("exp", (0,)), ("log", (2,)))
    pattern = Call(("log",), (Call(("exp",), (A,)),))
    assert list(matches(GraphBuilder(graph), pattern, link=lambda _, read: read.value == 2))
    assert not list(matches(GraphBuilder(graph), pattern, link=lambda _, read: read.value != 2))


def test_a_value_may_be_seen_otherwise_where_the_pattern_says_so() -> None:
    graph = program(("exp", (0,)), ("mul", (2, 0)))
    seen = Read(0, (View("aten.t.default", (Ref(0),)),))
    recipes = (graph.recipes[0], replace(graph.recipes[1], reads=(graph.recipes[1].reads[0], seen)))
    turned = replace(graph, recipes=recipes)
    assert not found(turned, Call(("mul",), (Call(("exp",), (A,)), A)))
    assert found(turned, Call(("mul",), (Call(("exp",), (A,)), Variable("a", any_view=True))))
