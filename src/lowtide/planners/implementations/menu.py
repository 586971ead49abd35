"""A graph with fewer implementations: only those of a level, and without some kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from lowtide.ir.graph import Graph, Group, Option, Recipe, Takeover
from lowtide.ir.in_place import in_place_candidates
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import IN_PLACE


def restricted(graph: Graph, numerics: Numerics, without: Collection[str] = (), recipes: Collection[int] = ()) -> Graph:
    """The graph without the options that a user leaves out.

    What the program runs is kept. A recipe that only a lost option has is lost with it, and so is what needs a value
    that nothing makes any more. Ids close up behind what is lost; those before it are unchanged.

    Arguments:
        graph: as enlarged, with its program's own options.
        numerics: the least exact level to keep.
        without: kinds of groups, or families, to leave out; with "in-place", recipes that overwrite what they read as
            well, where the program does not run them.
        recipes: of no program, to leave out with every option that has them.

    Returns: the graph itself where there is nothing to leave out. O(graph), as often as options need one another.
    """
    program = set(graph.program)
    left_out = {r.id for r in graph.recipes if r.consumes and r.id not in program} if IN_PLACE in without else set()
    left_out |= set(recipes)
    groups = {g: list(group.options) for g, group in enumerate(graph.groups)}
    for g, group in enumerate(graph.groups):
        kept = [o for o in group.options[1:] if _is_kept(group, without) and numerics.admits(o.numerics)]
        groups[g] = [group.options[0], *(o for o in kept if left_out.isdisjoint(o.recipes))]
        left_out |= _recipes(group.options) - _recipes(groups[g])
    while True:
        made = {v for r in graph.recipes if r.id not in left_out for v in r.outputs}
        made |= {v.id for v in graph.values if v.arrives is not None}
        orphans = {r.id for r in graph.recipes if r.id not in left_out and not _served(r, made)}
        orphans |= _alone(graph, left_out)
        for g, options in groups.items():
            left = [options[0], *(o for o in options[1:] if orphans.isdisjoint(o.recipes))]
            orphans |= _recipes(options) - _recipes(left)
            groups[g] = left
        if not orphans:
            break
        left_out |= orphans
    left_groups = (replace(graph.groups[g], options=tuple(o)) for g, o in groups.items() if len(o) > 1)
    return _without(graph, left_out, made, tuple(left_groups)) if left_out else replace(graph, groups=(*left_groups,))


def _is_kept(group: Group, without: Collection[str]) -> bool:
    """Whether neither its kind nor its family, after which it is named, is left out."""
    return group.kind not in without and not any(group.name.startswith(f"{name} ") for name in without)


def _recipes(options: Iterable[Option]) -> set[int]:
    return {r for o in options for r in o.recipes}


def _served(recipe: Recipe, made: Collection[int]) -> bool:
    """Whether all that it reads comes from somewhere; what it saves of the generator is its own."""
    return all(v in made for v in recipe.read_values)


def _alone(graph: Graph, left_out: Collection[int]) -> set[int]:
    """Recipes in place that stand for nothing but what is left_out."""
    candidates = in_place_candidates(graph)
    stand = {w for plain, found in candidates.items() if plain not in left_out for w in found}
    return {w for found in candidates.values() for w in found} - stand - set(left_out)


def _without(graph: Graph, left_out: set[int], made: set[int], groups: tuple[Group, ...]) -> Graph:
    """The graph without some recipes, and without the values that are not made."""
    value_ids = {v: i for i, v in enumerate(v.id for v in graph.values if v.id in made)}
    recipe_ids = {r: i for i, r in enumerate(r.id for r in graph.recipes if r.id not in left_out)}
    return replace(
        graph,
        values=tuple(
            replace(graph.values[v], id=i, handed_to=_renamed(graph.values[v].handed_to, value_ids))
            for v, i in value_ids.items()
        ),
        recipes=tuple(_numbered(graph.recipes[r], i, value_ids) for r, i in recipe_ids.items()),
        program=tuple(recipe_ids[r] for r in graph.program),
        groups=tuple(g.renumbered(recipe_ids) for g in groups),
    )


def _renamed(value: int | None, ids: dict[int, int]) -> int | None:
    return None if value is None else ids[value]


def _numbered(recipe: Recipe, number: int, ids: dict[int, int]) -> Recipe:
    return replace(
        recipe,
        id=number,
        outputs=tuple(ids[v] for v in recipe.outputs),
        reads=tuple(replace(r, value=ids[r.value]) for r in recipe.reads),
        consumes=tuple(Takeover(ids[t.value], t.output) for t in recipe.consumes),
        state=_renamed(recipe.state, ids),
    )
