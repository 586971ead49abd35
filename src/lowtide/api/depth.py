"""A measured graph with layers more often or less often, its implementations among it. Needs no torch.

Layers are found in what the program runs. In the deeper program implementations are looked for anew, as after a
capture; each that the shallower graph has costs what it costs there, and any other one is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from lowtide.ir import repetition
from lowtide.ir.graph import Effect, Graph, Group, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import KINDS
from lowtide.ops.catalogue import enlarge
from lowtide.planners.implementations.menu import restricted


def deepened(graph: Graph, times: Mapping[str, int]) -> Graph:
    """The graph with layers as often in a row as is said, by their names (see `lowtide.ir.block_search`).

    Arguments:
        graph: profiled.

    Raises:
        PlanError: if there is no such layer, or it cannot come that often.
    """
    if not times:
        return graph
    plain = _plain(graph)
    deep = repetition.deepened(plain, times)
    return deep if len(plain.recipes) == len(graph.recipes) else _as_known(enlarge(deep, Numerics.LOSSY), deep, graph)


def _plain(graph: Graph) -> Graph:
    """The graph without implementations: the program, and the replays of its random recipes."""
    captured = set(graph.program) | {r.id for r in graph.recipes if r.state is not None and r.effect is Effect.PURE}
    return restricted(graph, Numerics.EXACT, KINDS, [r.id for r in graph.recipes if r.id not in captured])


def _as_known(graph: Graph, deep: Graph, shallow: Graph) -> Graph:
    """The implementations that a shallower graph has as well, at its level, with its seconds and bytes."""
    known = {_facts(shallow, r): r for r in shallow.recipes if r.id not in set(shallow.program)}
    levels = _levels(shallow)
    recipes, values = list(graph.recipes), list(graph.values)
    unknown: list[int] = []
    for recipe in graph.recipes[len(deep.recipes) :]:
        like = known.get(_facts(graph, recipe))
        if like is None:
            unknown.append(recipe.id)
            continue
        recipes[recipe.id] = replace(recipe, time_s=like.time_s, trace=like.trace)
        for value, its in zip(recipe.outputs, like.outputs, strict=True):
            if value >= len(deep.values):
                size_B, geometry = shallow.values[its].size_B, shallow.values[its].geometry
                values[value] = replace(values[value], size_B=size_B, geometry=geometry)
    groups = tuple(_levelled(graph, group, levels) for group in graph.groups)
    found = replace(graph, recipes=tuple(recipes), values=tuple(values), groups=groups)
    return restricted(found, Numerics.LOSSY, recipes=unknown)


def _facts(graph: Graph, recipe: Recipe) -> object:
    """A key that is equal for recipes that do the same at two sites of a network."""
    reads = tuple((r.views, graph.values[r.value].geometry) for r in recipe.reads)
    outputs = tuple(graph.values[v].role for v in recipe.outputs)
    consumed = tuple((recipe.read_values.index(t.value), t.output) for t in recipe.consumes)
    return (recipe.op, recipe.args, recipe.kwargs, recipe.paths, recipe.segment, reads, len(outputs), consumed)


def _levels(graph: Graph) -> dict[object, Numerics]:
    """The least exact level of the options that have a recipe, by its facts."""
    found: dict[object, Numerics] = {}
    for group in graph.groups:
        for option in group.options[1:]:
            for r in option.recipes:
                facts = _facts(graph, graph.recipes[r])
                found[facts] = _worst([option.numerics, found.get(facts, Numerics.EXACT)])
    return found


def _levelled(graph: Graph, group: Group, levels: Mapping[object, Numerics]) -> Group:
    own = set(group.options[0].recipes)

    def level(recipes: Collection[int], claimed: Numerics) -> Numerics:
        fresh = [_facts(graph, graph.recipes[r]) for r in recipes if r not in own]
        return _worst([claimed, *(levels[f] for f in fresh if f in levels)]) if claimed is Numerics.EXACT else claimed

    return replace(group, options=tuple(replace(o, numerics=level(o.recipes, o.numerics)) for o in group.options))


def _worst(levels: Sequence[Numerics]) -> Numerics:
    return max(levels, key=tuple(Numerics).index)
