"""Every rule of `lowtide.ir.rules` is broken once, by the smallest change to something legal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lowtide.errors import IllegalPlan
from lowtide.ir.call import Read, Ref
from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph, Group, MiniTrace, Option, Recipe, Role, Segment, Takeover, Value
from lowtide.ir.layout import Layout, LiveBlock
from lowtide.ir.rules import GRAPH_RULES, LAYOUT_RULES, SCHEDULE_RULES
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send, Step
from tests.ir import examples
from tests.ir.layouts import stacked
from tests.ir.sketch import Sketch

B0, B1 = Boundary(0), Boundary(1)
CHAIN = [B0, Run(0, (2,)), Run(1, (3,)), Drop(2), Run(2, (4,)), B1, Run(3, (6,))]
NOISE = [B0, Run(0, (1,)), Run(1, (2, 3)), B1, Run(3, (4,))]


def _with(steps: list[Step], at: int, *new: Step) -> list[Step]:
    """The steps with the one at `at` replaced by `new`."""
    return [*steps[:at], *new, *steps[at + 1 :]]


def _replace(graph: Graph, **facts: Any) -> Graph:
    return msgspec.structs.replace(graph, **facts)


def _value(graph: Graph, number: int, **facts: Any) -> Graph:
    values = list(graph.values)
    values[number] = msgspec.structs.replace(values[number], **facts)
    return _replace(graph, values=tuple(values))


def _recipe(graph: Graph, number: int, **facts: Any) -> Graph:
    recipes = list(graph.recipes)
    recipes[number] = msgspec.structs.replace(recipes[number], **facts)
    return _replace(graph, recipes=tuple(recipes))


def _reread() -> Graph:
    """x is overwritten by the caller after the first segment, and only a recomputation would read it later."""
    graph = _value(examples.chain(), 1, persistent=True, readable_through=0)
    return _recipe(graph, 3, reads=graph.recipes[3].reads[:2], args=())


def _held() -> Graph:
    """The chain, with its output held by the caller."""
    return _value(examples.chain(), 4, held=True)


def _recomputable() -> Graph:
    """The chain, with an input that can be recomputed."""
    graph = _value(examples.in_place(), 0, persistent=False)
    extra = Recipe(3, "load", (0,), paths=((),), trace=MiniTrace((40,), (0,)))
    return _replace(graph, recipes=(*graph.recipes, extra))


def _unneeded() -> Graph:
    """The noise, whose value nobody asks for."""
    return _value(examples.opaque_then_random(), 2, leaves=None)


def _undone() -> Graph:
    """The ReLU in place, and a recipe that would turn its output back into its input, in place."""
    graph = _value(examples.in_place(), 2, leaves=None)
    undo = msgspec.structs.replace(graph.recipes[2], id=3, outputs=(1,), reads=(Read(2),), consumes=(Takeover(2, 0),))
    return _replace(graph, recipes=(*graph.recipes, undo))


def _reloaded() -> Graph:
    """An input that the caller gave is overwritten, though something could make it anew."""
    sketch = Sketch()
    x, y = sketch.value(8, Role.INPUT, "x", arrives=0), sketch.value(8, Role.OUTPUT, "y", leaves=0)
    sketch.recipe("scale_", [x], [y], consumes=[(x, 0)])
    sketch.recipe("load", [], [x], program=False)
    return sketch.build()


def _gradient_changed() -> Graph:
    """A gradient that the caller holds is scaled in place, though it arrives once more later."""
    sketch = Sketch(parts=(0, 0, 0))
    x = sketch.persistent(8, Role.INPUT, "x")
    grad = sketch.value(8, Role.GRADIENT, "grad", leaves=0, arrives=2)
    scaled = sketch.value(8, Role.GRADIENT, "scaled", leaves=1)
    sketch.recipe("backward", [x], [grad])
    sketch.recipe("scale_", [grad], [scaled], segment=1, consumes=[(grad, 0)])
    return sketch.build()


def _constant_overwritten() -> Graph:
    return _value(examples.update(), 0, role=Role.CONSTANT)


@dataclass(frozen=True)
class Case:
    """A rule, a graph, and steps that break it at `step` (None: blamed on no step)."""

    rule: str
    graph: Graph
    steps: list[Step]
    step: int | None
    budget_B: int | None = None
    host_B: int | None = None


CASES = [
    Case("reference", examples.chain(), [*CHAIN, Run(99, ())], 7),
    Case("reference", examples.chain(), [*CHAIN, Drop(-1)], 7),
    Case("reference", examples.chain(), [*CHAIN, Send(2, "device")], 7),
    Case("boundaries", examples.chain(), CHAIN[1:], 0),
    Case("boundaries", examples.chain(), CHAIN[:5], None),
    Case("boundaries", examples.chain(), [], None),
    Case("boundaries", examples.chain(), _with(CHAIN, 5, B1, B1), 6),
    Case("after", examples.chain(), _with(CHAIN, 2, Run(1, (3,), (2,))), 2),
    Case("after", examples.chain(), _with(CHAIN, 2, Run(1, (3,), (0,))), 2),
    Case("part", examples.bundle(), [B0, Run(0, (1,)), Run(1, (2,)), B1, Run(0, ()), Run(2, (3,))], 4),
    Case("part", examples.bundle(), [B0, Run(0, (1,)), Run(1, (2,)), B1, Drop(1), Run(2, (3,))], 4),
    Case("segment", examples.chain(), _with(CHAIN, 4, Run(2, (4,)), Run(3, (6,))), 5),
    Case("segment", _unneeded(), [B0, Run(0, (1,)), B1, Run(1, (2,))], 3),
    Case("readable", _reread(), [*CHAIN, Run(0, ())], 7),
    Case("resident", examples.chain(), _with(CHAIN, 1), 1),
    Case("resident", examples.chain(), _with(CHAIN, 2, Drop(2), Run(1, (3,))), 3),
    Case(
        "in-flight",
        examples.chain(),
        _with(CHAIN, 2, Send(2, "host", (1,)), Run(1, (3,), (2,)), Drop(2), Fetch(2, "host", (2,)), Run(1, ())),
        6,
    ),
    Case("in-flight", examples.chain(), _with(CHAIN, 2, Send(2, "host"), Run(1, (3,), (2,))), 2),
    Case("replay-state", examples.opaque_then_random(), _with(NOISE, 2, Run(1, (2,)), Run(2, ())), 3),
    Case("keep", examples.chain(), _with(CHAIN, 1, Run(0, (3,))), 1),
    Case("keep", examples.chain(), _with(CHAIN, 1, Run(0, (2, 2))), 1),
    Case("keep-resident", examples.chain(), _with(CHAIN, 2, Run(0, (2,)), Run(1, (3,))), 2),
    Case("group", examples.convolution(), [B0, Run(0, ()), Run(1, (2,))], 2),
    Case("once", examples.opaque_then_random(), _with(NOISE, 2, Run(1, (2, 3)), Run(1, ())), 3),
    Case("once", examples.opaque_then_random(), _with(NOISE, 1, Run(0, (1,)), Run(0, ())), 2),
    Case("once", _unneeded(), _with(NOISE, 2), None),
    Case(
        "once-order",
        _recipe(examples.opaque_then_random(), 1, reads=(), args=()),
        [B0, Run(1, (2,)), Run(0, (1,)), B1, Run(3, (4,))],
        1,
    ),
    Case(
        "consume-copies",
        examples.in_place(),
        [B0, Run(0, (1,)), Send(1, "host", (1,)), Run(2, (2,), (2,))],
        3,
    ),
    Case("consume-visible", _constant_overwritten(), [B0, Run(0, (3,)), Run(1, (2,))], 2),
    Case("consume-visible", examples.update(), [B0, Run(0, (3,)), Run(1, ())], 2),
    Case("consume-visible", _value(examples.update(), 2, held=False), [B0, Run(0, (3,)), Run(1, (2,))], 2),
    Case("consumed", _reloaded(), [B0, Run(0, (1,)), Run(1, (0,))], 2),
    Case("consumed", _gradient_changed(), [B0, Run(0, (1,)), B1, Run(1, (2,)), Boundary(2)], 4),
    Case("drop-absent", examples.chain(), _with(CHAIN, 3, Drop(2), Drop(2)), 4),
    Case("drop-absent", examples.chain(), _with(CHAIN, 3, Drop(2, "host")), 3),
    Case("drop-persistent", examples.chain(), _with(CHAIN, 3, Drop(0)), 3),
    Case("drop-persistent", examples.update(), [B0, Run(0, (3,)), Run(1, (2,)), Drop(2)], 3),
    Case("drop-handed-over", _held(), [*CHAIN, Drop(4)], 7),
    Case("leave", examples.chain(), _with(CHAIN, 4, Run(2, ())), 5),
    Case("leave", examples.chain(), CHAIN[:6], 6),
    Case("send", examples.chain(), _with(CHAIN, 1, Send(2, "host")), 1),
    Case("send", examples.chain(), _with(CHAIN, 2, Send(2, "host", (1,)), Send(2, "host", (1,))), 3),
    Case("fetch", examples.chain(), _with(CHAIN, 1, Fetch(2, "host")), 1),
    Case("fetch", examples.chain(), _with(CHAIN, 2, Send(2, "host", (1,)), Fetch(2, "host", (2,))), 3),
    Case("freed-in-flight", examples.chain(), _with(CHAIN, 2, Send(2, "host", (1,)), Run(1, (3,))), 4),
    Case("freed-in-flight", examples.in_place(), [B0, Run(0, (1,)), Send(1, "host", (1,)), Drop(1, "host")], 3),
    Case("budget", examples.chain(), CHAIN, 6, budget_B=238),
    Case("host-budget", examples.chain(), _with(CHAIN, 2, Send(2, "host", (1,)), Drop(2, "host", (2,))), 2, host_B=1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.rule)
def test_schedule_rule(case: Case) -> None:
    check_graph(case.graph)
    with pytest.raises(IllegalPlan) as caught:
        check(case.graph, Schedule(tuple(case.steps)), case.budget_B, host_budget_B=case.host_B)
    assert f"breaks rule '{case.rule}'" in str(caught.value)
    if case.step is not None:
        assert str(caught.value).startswith(f"step {case.step}: ")


def test_legal_starting_points() -> None:
    check(examples.chain(), Schedule(tuple(CHAIN)), 239)
    check(examples.opaque_then_random(), Schedule(tuple(NOISE)))
    check(examples.bundle(), Schedule((B0, Run(0, (1,)), Run(1, (2,)), B1, Run(2, (3,)))))
    check(examples.update(), Schedule((B0, Run(0, (3,)), Run(1, (2,)))))
    check(_recomputable(), Schedule((B0, Run(0, (1,)), Drop(0), Run(3, (0,)), Run(2, (2,)))))


def test_what_was_overwritten_may_be_made_anew() -> None:
    """The storage passed on, the content did not change: a run recomputes it, in other bytes or where it was."""
    again = Schedule((B0, Run(0, (1,)), Run(2, (2,)), Run(0, (1,)), Drop(1)))
    check(examples.in_place(), again, 120, stacked(examples.in_place(), again))
    back = Schedule((B0, Run(0, (1,)), Run(2, (2,)), Run(3, (1,)), Run(2, (2,))))
    check(_undone(), back, 80, stacked(_undone(), back))


def _two_engines() -> tuple[Graph, Schedule]:
    """`a` is dropped, then `x` comes back by a copy engine that waits for nothing but its own sending."""
    steps = [B0, Send(1, "host"), Run(0, (2,)), Run(1, (3,), (1,)), Drop(1), Drop(2), Run(2, (4,)), B1]
    return examples.chain(), Schedule((*steps, Fetch(1, "host", (1,)), Run(3, (6,), (8,))))


def _moved(rule: str) -> Layout:
    layout = stacked(*_two_engines())
    offsets_B = list(layout.offsets_B)
    at = {(b.value, b.step): k for k, b in enumerate(layout.blocks)}
    if rule == "placement":
        return replace(layout, blocks=layout.blocks[1:], offsets_B=layout.offsets_B[1:])
    if rule == "height":
        return replace(layout, height_B=layout.height_B - 1)
    offsets_B[at[1, 8]] = offsets_B[at[(3, 3) if rule == "overlap" else (2, 2)]]
    return replace(layout, offsets_B=tuple(offsets_B))


@pytest.mark.parametrize("rule", list(LAYOUT_RULES))
def test_layout_rule(rule: str) -> None:
    graph, schedule = _two_engines()
    check(graph, schedule, layout=stacked(graph, schedule))
    with pytest.raises(IllegalPlan, match=f"'{rule}'"):
        check(graph, schedule, layout=_moved(rule))


def test_an_edge_allows_reuse_across_engines() -> None:
    graph, schedule = _two_engines()
    steps = list(schedule.steps)
    steps[8] = Fetch(1, "host", (1, 6))
    check(graph, Schedule(tuple(steps)), layout=_moved("reuse"))


def test_the_same_allocation_twice_is_refused() -> None:
    graph, schedule = _two_engines()
    layout = stacked(graph, schedule)
    twice = replace(layout, blocks=(*layout.blocks, layout.blocks[0]), offsets_B=(*layout.offsets_B, 1000))
    with pytest.raises(IllegalPlan, match="'placement'"):
        check(graph, schedule, layout=twice)


def test_nothing_overlaps_a_live_block() -> None:
    graph, schedule = _two_engines()
    layout = replace(stacked(graph, schedule), live_blocks=(LiveBlock(0, 8),))
    with pytest.raises(IllegalPlan, match="what was there before"):
        check(graph, schedule, layout=layout)


def _unbalanced(events: tuple[int, ...], outputs: tuple[int | None, ...] = (1,)) -> Graph:
    return _recipe(examples.chain(), 0, trace=MiniTrace(events, outputs))


def _made_twice() -> Graph:
    graph = examples.chain()
    second = msgspec.structs.replace(graph.recipes[0], id=4)
    return _replace(graph, recipes=(*graph.recipes, second), program=(0, 4, 1, 2, 3))


def _random_in_one_option() -> Graph:
    graph = examples.dropout()
    (group,) = graph.groups
    options = (group.options[0], Option("pure", group.options[1].recipes[1:]))
    return _replace(graph, groups=(Group(group.name, options),))


GRAPHS = [
    ("graph-ids", _value(examples.chain(), 2, id=3)),
    ("graph-ids", _recipe(examples.chain(), 2, id=3)),
    ("graph-references", _value(examples.chain(), 2, leaves=2)),
    ("graph-references", _recipe(examples.chain(), 2, segment=2)),
    ("graph-references", _recipe(examples.chain(), 2, outputs=(77,))),
    ("graph-references", _recipe(examples.chain(), 2, outputs=(4, 4), paths=())),
    ("graph-references", _recipe(examples.chain(), 2, args=(Ref(1),))),
    ("graph-references", _recipe(examples.chain(), 2, paths=((0,), (1,)))),
    ("graph-references", _replace(examples.chain(), program=(0, 1, 2, 9))),
    ("graph-program", _replace(examples.chain(), program=(0, 2, 1, 3))),
    ("graph-program", _replace(examples.chain(), program=(0, 1, 2, 2, 3))),
    ("graph-program", _replace(examples.chain(), program=(0, 1, 2))),
    ("graph-program", _recipe(examples.chain(), 1, segment=1)),
    ("graph-program", _value(examples.chain(), 1, persistent=True, readable_through=0)),
    ("graph-program", _made_twice()),
    ("graph-origins", _value(examples.chain(), 1, arrives=None)),
    ("graph-origins", _value(examples.chain(), 2, persistent=True)),
    ("graph-parts", _replace(examples.chain(), segments=(Segment("f", 0), Segment("b", 1)))),
    ("graph-traces", _unbalanced((30, 20))),
    ("graph-traces", _unbalanced((30, 20, -1, -1))),
    ("graph-traces", _unbalanced((30, 20, -1, -2))),
    ("graph-traces", _unbalanced((30, -1), (None,))),
    ("graph-traces", _unbalanced((30, 21, -1))),
    ("graph-traces", _unbalanced((30, 20, -1), ())),
    ("graph-takeovers", _recipe(examples.in_place(), 2, consumes=(Takeover(1, 0), Takeover(1, 0)))),
    ("graph-takeovers", _recipe(examples.in_place(), 2, consumes=(Takeover(0, 0),))),
    ("graph-takeovers", _recipe(examples.in_place(), 2, consumes=(Takeover(1, 1),))),
    ("graph-takeovers", _value(examples.update(), 2, size_B=41)),
    ("graph-residency", _value(examples.chain(), 2, memory="host")),
    ("graph-residency", _value(examples.host_resident_update(), 2, memory="host")),
    ("graph-residency", _value(examples.update(), 2, replaces=1)),
    ("graph-states", _recipe(examples.opaque_then_random(), 0, state=3)),
    ("graph-groups", _replace(examples.convolution(), groups=examples.convolution().groups * 2)),
    ("graph-groups", _replace(examples.convolution(), groups=(Group("g", ()),))),
    ("graph-groups", _replace(examples.convolution(), groups=(Group("g", (Option("o", (1,)), Option("p", (0,)))),))),
    ("graph-effects", _random_in_one_option()),
    ("graph-effects", _recipe(examples.dropout(), 5, effect=Effect.PURE, state=None, outputs=(1, 3))),
    ("graph-effects", _replace(examples.dropout(), groups=())),
    ("graph-numbers", _value(examples.chain(), 2, size_B=-1)),
    ("graph-numbers", _value(examples.chain(), 2, size_B=2**60)),
    ("graph-numbers", _recipe(examples.chain(), 2, time_s=1e6)),
    ("graph-numbers", _recipe(examples.chain(), 2, time_s=float("nan"))),
]


@pytest.mark.parametrize(("rule", "graph"), GRAPHS, ids=[rule for rule, _ in GRAPHS])
def test_graph_rule(rule: str, graph: Graph) -> None:
    with pytest.raises(IllegalPlan, match=f"'{rule}'"):
        check_graph(graph)


def test_every_rule_is_broken_once() -> None:
    assert {case.rule for case in CASES} == set(SCHEDULE_RULES)
    assert {rule for rule, _ in GRAPHS} == set(GRAPH_RULES)


def test_errors_name_step_value_and_rule() -> None:
    sketch = Sketch()
    x = sketch.value(8, Role.INPUT, "x", arrives=0)
    y = sketch.value(8, name="h.0.attn")
    sketch.recipe("aten.relu.default", [x], [y])
    with pytest.raises(IllegalPlan, match=r"step 1: dropping value 1 \(h\.0\.attn\) from 'device' breaks rule"):
        check(sketch.build(), Schedule((B0, Drop(1))))


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Value(0, "x", 1, Role.INPUT).size_B = 2  # type: ignore[misc]
