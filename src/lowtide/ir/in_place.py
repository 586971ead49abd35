"""Recipes that do in place what another one does: over a value that they read.

Such a recipe belongs to no group: it may run wherever the value it overwrites is not read any more.
"""

from __future__ import annotations

from lowtide.ir.graph import Effect, Graph, Recipe, Value

_Deed = tuple[tuple[int, ...], frozenset[int], int, str]


def in_place_candidates(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Finds what may run instead of a recipe, over one of the values that it reads.

    Both are pure, make the same values from the same values, in one segment and on one engine. What is overwritten is
    the graph's own: the caller neither gave it nor gets it.

    Returns: recipe -> recipes that are not in the program; without those for which there is none. O(recipes).
    """
    barred = {r for g in graph.groups for o in g.options for r in o.recipes}.union(graph.program)
    candidates: dict[_Deed, list[int]] = {}
    for recipe in graph.recipes:
        if recipe.consumes and recipe.id not in barred and _passes_on(graph, recipe):
            candidates.setdefault(_deed(recipe), []).append(recipe.id)
    if not candidates:
        return {}
    plain = (r for r in graph.recipes if not r.consumes and _repeats_freely(r))
    return {r.id: tuple(candidates[_deed(r)]) for r in plain if _deed(r) in candidates}


def plain_candidates(graph: Graph) -> dict[int, int]:
    """Finds what each recipe in place stands for: the program's recipe where there is one. O(recipes)."""
    found: dict[int, int] = {}
    program = set(graph.program)
    for plain, candidates in in_place_candidates(graph).items():
        for candidate in candidates:
            if candidate not in found or (plain in program and found[candidate] not in program):
                found[candidate] = plain
    return found


def has_the_bytes(recipe: Recipe, value: Value, heir: Value) -> bool:
    """Whether what a recipe overwrites, as it reads it, has exactly the bytes of the output that takes them over.

    The value is read as one view only, its elements fill its storage without holes, and the output is to have the same
    ones at the same places.

    Arguments:
        recipe: that reads `value` and makes `heir`.
    """
    candidates = {(r.views, r.geometry) for r in recipe.reads if r.value == value.id}
    if len(candidates) != 1 or heir.geometry is None:
        return False
    views, geometry = candidates.pop()
    if geometry is None and not views:
        geometry = value.geometry
    if geometry is None or not geometry.is_dense or not geometry.has_bytes_of(heir.geometry):
        return False
    return value.size_B == heir.size_B == geometry.extent_B


def _passes_on(graph: Graph, recipe: Recipe) -> bool:
    if len(recipe.consumes) != 1 or recipe.consumes[0].output is None or not _repeats_freely(recipe):
        return False
    value = graph.values[recipe.consumes[0].value]
    return not value.persistent and value.arrives is None and value.leaves is None


def _repeats_freely(recipe: Recipe) -> bool:
    return recipe.effect is Effect.PURE and recipe.state is None


def _deed(recipe: Recipe) -> _Deed:
    return recipe.outputs, frozenset(recipe.read_values), recipe.segment, recipe.engine
