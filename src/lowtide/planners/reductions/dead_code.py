"""Leaves out program recipes whose outputs nobody needs."""

from __future__ import annotations

from lowtide.ir.graph import Effect, Graph


def needed_program(graph: Graph) -> tuple[int, ...]:
    """Finds the program recipes that a plan has to run.

    Returns: their ids in program order. Random and opaque recipes always run; a pure one runs if one of its
        outputs is handed over or read by a recipe that runs.

    O(graph).
    """
    wanted = {v.id for v in graph.values if v.leaves is not None}
    needed: list[int] = []
    for recipe_id in reversed(graph.program):
        recipe = graph.recipes[recipe_id]
        if recipe.effect is Effect.PURE and wanted.isdisjoint(recipe.outputs):
            continue
        needed.append(recipe_id)
        wanted.update(recipe.read_values)
    return tuple(reversed(needed))
