"""Whole steps of training to plan: forward, backward and one update per weight."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lowtide.ir.call import Read
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Takeover, Value

PERSISTENT: dict[str, Any] = {"arrives": 0, "persistent": True, "movable": True}


def with_updates(
    graph: Graph, states: int = 1, *, at_end: bool = False, engine: str = "compute", merged: bool = False
) -> Graph:
    """Lets no gradient leave: each updates its weight and some state of its size, in the last segment.

    Arguments:
        graph: of one part, written by a tape.
        states: how many values the optimizer keeps per weight.
        at_end: all updates last; else each right behind its gradient.
        engine: of the updates.
        merged: whether all is one segment.
    """
    last = 0 if merged else len(graph.segments) - 1
    values = [_inside(v, last) for v in graph.values]
    recipes = [replace(r, segment=min(r.segment, last)) for r in graph.recipes]
    program: list[int] = []
    late: list[int] = []
    for r in graph.program:
        program.append(r)
        for gradient in (graph.values[v] for v in graph.recipes[r].outputs):
            weight = _weight_of(graph, graph.recipes[r], gradient)
            if weight is None:
                continue
            held = [weight.id]
            for k in range(states):
                held.append(len(values))
                values.append(Value(held[-1], f"{weight.name}.s{k}", weight.size_B, Role.STATE, **PERSISTENT))
            made = []
            for old in held:
                made.append(len(values))
                name, role = f"{values[old].name}'", values[old].role
                values.append(Value(made[-1], name, weight.size_B, role, leaves=last, replaces=old))
            (late if at_end else program).append(len(recipes))
            recipes.append(Recipe(
                len(recipes), "update", tuple(made), tuple(Read(v) for v in (*held, gradient.id)),
                segment=last,
                consumes=tuple(Takeover(v, k) for k, v in enumerate(held)), engine=engine, time_s=1e-6,
                trace=MiniTrace((512, -1), (None,) * len(made), measured=True),
            ))  # fmt: skip
    facts: dict[str, Any] = {"values": tuple(values), "recipes": tuple(recipes), "program": (*program, *late)}
    return replace(graph, segments=(Segment("step"),) if merged else graph.segments, **facts)


def _inside(value: Value, last: int) -> Value:
    if value.persistent:
        return replace(value, movable=value.role is Role.PARAMETER)
    if value.role is Role.GRADIENT:
        return replace(value, role=Role.ACTIVATION, leaves=None)
    arrives, leaves = (None if k is None else min(k, last) for k in (value.arrives, value.leaves))
    return replace(value, arrives=arrives, leaves=leaves)


def _weight_of(graph: Graph, recipe: Recipe, gradient: Value) -> Value | None:
    if gradient.role is not Role.GRADIENT:
        return None
    reads = (graph.values[v] for v in recipe.read_values)
    return next(v for v in reads if v.persistent and v.role is Role.PARAMETER and v.size_B == gradient.size_B)
