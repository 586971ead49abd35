"""What of a graph's program has to run, and what of that overwrites persistent values.

A recipe whose outputs nobody needs is left out. An update overwrites a weight and its optimizer state: what it makes
lives in the bytes that it overwrites; where they are on the device, they are counted already. What it overwrote can be
read nowhere any more, so nothing that reads it may be recomputed after the update.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.ir.graph import Effect, Graph
from lowtide.ir.schedule import DEVICE


def refuses_overwriting(graph: Graph) -> str | None:
    """Says which recipe of the program overwrites what a plan would have to look after, or None."""
    for recipe in (graph.recipes[r] for r in graph.program):
        for takeover in recipe.consumes:
            if not graph.values[takeover.value].persistent or takeover.output is None:
                return f"recipe {recipe.id} ({recipe.op}) overwrites a value it reads, and the program runs it as it is"
    return None


def updates(graph: Graph, program: Sequence[int]) -> dict[int, int]:
    """Persistent value -> the recipe of the program that overwrites it. O(program)."""
    return {t.value: r for r in program for t in graph.recipes[r].consumes if graph.values[t.value].persistent}


def updated_values(graph: Graph, program: Sequence[int]) -> frozenset[int]:
    """Values that live in bytes of persistent ones on the device. O(program)."""
    recipes = (graph.recipes[r] for r in program)
    return frozenset(
        recipe.outputs[t.output]
        for recipe in recipes
        for t in recipe.consumes
        if t.output is not None and graph.values[t.value].persistent and graph.values[t.value].memory == DEVICE
    )


def needed_program(graph: Graph) -> tuple[int, ...]:
    """Finds the program recipes that a plan has to run.

    Returns: their ids in program order. Random and opaque recipes always run; a pure one runs if one of its
        outputs is handed over or read by a recipe that runs.

    O(graph).
    """
    read = {v.id for v in graph.values if v.leaves is not None}
    needed: list[int] = []
    for recipe_id in reversed(graph.program):
        recipe = graph.recipes[recipe_id]
        if recipe.effect is Effect.PURE and read.isdisjoint(recipe.outputs):
            continue
        needed.append(recipe_id)
        read.update(recipe.read_values)
    return tuple(reversed(needed))
