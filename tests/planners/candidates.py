"""Graphs to plan in which operators may run in place."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from lowtide.ir.graph import Effect, Graph, MiniTrace, Recipe, Takeover


def with_candidates(graph: Graph, ops: Collection[str] | None = None) -> Graph:
    """Adds to every pure recipe of the program all candidates in place: over each value of its first output's size.

    Arguments:
        ops: only recipes of these operators; None for all.
    """
    recipes = list(graph.recipes)
    for r in graph.program:
        recipe = graph.recipes[r]
        if recipe.effect is not Effect.PURE or recipe.state is not None or (ops is not None and recipe.op not in ops):
            continue
        heir = graph.values[recipe.outputs[0]]
        for v in recipe.read_values:
            value = graph.values[v]
            inside = not value.persistent and value.arrives is None and value.leaves is None
            if inside and value.size_B == heir.size_B > 0:
                trace = _without_first(recipe)
                recipes.append(replace(recipe, id=len(recipes), consumes=(Takeover(v, 0),), trace=trace))
    return replace(graph, recipes=tuple(recipes))


def _without_first(recipe: Recipe) -> MiniTrace:
    """The recipe's trace without the allocation of its first output."""
    base = recipe.trace.outputs[0]
    assert base is not None
    events, count, number = [], -1, dict[int, int]()
    for event in recipe.trace.events:
        if event >= 0:
            count += 1
            if count == base:
                continue
            number[count] = len(number)
            events.append(event)
        else:
            events.append(-(number[-event - 1] + 1))
    outputs = (None, *(None if k is None else number[k] for k in recipe.trace.outputs[1:]))
    return MiniTrace(tuple(events), outputs, recipe.trace.workers_B, measured=True)
