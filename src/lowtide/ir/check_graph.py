"""Whether a graph is consistent in itself, before anything is planned on it. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lowtide.ir.call import Arg, Items, Ref
from lowtide.ir.geometry import ITEM_B, Geometry
from lowtide.ir.graph import Effect, Graph, Option, Recipe
from lowtide.ir.rules import illegal
from lowtide.ir.schedule import DEVICE, HOST

_MOST_SEGMENTS = 10_000  # of a model that breaks into five thousand graphs
_DEEPEST = 16  # lists in one another, among an operator's arguments
MOST_B, MOST_s = 2**59, 86_400.0  # of all values and of one trace; of one run of everything: sums of them stay exact


def check_graph(graph: Graph) -> None:
    """Checks that a graph is consistent in itself.

    Arguments:
        graph: any.

    Raises:
        IllegalPlan: names the first broken rule of `GRAPH_RULES` and the value or recipe.

    O(graph), and O(parts * values).
    """
    _ids_and_references(graph)
    _numbers(graph)
    _geometries(graph)
    for recipe in graph.recipes:
        _arguments(graph, recipe)
        _state(graph, recipe)
        _takeovers(graph, recipe)
        _trace(graph, recipe)
    _groups(graph)
    _effects(graph)
    _origins(graph)
    _host_resident(graph)
    _parts(graph)
    _program(graph)


def value_name(graph: Graph, value: int) -> str:
    """A value's name in messages: `value 3 (h.0.attn)`."""
    return f"value {value} ({graph.values[value].name})" if 0 <= value < len(graph.values) else f"value {value}"


def recipe_name(graph: Graph, recipe: int) -> str:
    """A recipe's name in messages: `recipe 7 (aten.relu.default)`."""
    return f"recipe {recipe} ({graph.recipes[recipe].op})" if 0 <= recipe < len(graph.recipes) else f"recipe {recipe}"


def value_parts(graph: Graph, value: int) -> set[int]:
    """The parts of the bundle that may touch a value: where it is made and where it arrives; all if persistent."""
    if graph.values[value].persistent:
        return {s.part for s in graph.segments}
    parts = {graph.segments[graph.recipes[r].segment].part for r in graph.producers[value]}
    arrives = graph.values[value].arrives
    return parts if arrives is None else parts | {graph.segments[arrives].part}


def effect_slots(graph: Graph) -> dict[int, int]:
    """Finds the place of every random or opaque recipe in the order in which the program runs them.

    Returns: recipe -> place. The k-th such recipe of a group's other option has the place of the k-th one of its
        first option; recipes without a place are missing.
    """
    effectful = [r for r in graph.program if graph.recipes[r].effect is not Effect.PURE]
    slots = {recipe: place for place, recipe in enumerate(effectful)}
    for group in graph.groups:
        first = _effectful(graph, group.options[0])
        for option in group.options[1:]:
            for original, stand_in in zip(first, _effectful(graph, option), strict=False):
                if original in slots:
                    slots.setdefault(stand_in, slots[original])
    return slots


def _effectful(graph: Graph, option: Option) -> list[int]:
    return [r for r in option.recipes if graph.recipes[r].effect is not Effect.PURE]


def _ids_and_references(graph: Graph) -> None:
    values, recipes, segments = range(len(graph.values)), range(len(graph.recipes)), range(len(graph.segments))
    if not 1 <= len(segments) <= _MOST_SEGMENTS or any(s.part not in segments for s in graph.segments):
        raise illegal("graph-references", f"{len(segments)} segments, or a part of the bundle")
    for index, value in enumerate(graph.values):
        name = value_name(graph, index)
        if value.id != index:
            raise illegal("graph-ids", f"{name} with id {value.id}")
        for segment in (value.arrives, value.leaves, value.readable_through):
            if segment is not None and segment not in segments:
                raise illegal("graph-references", f"{name} with segment {segment}")
        if value.handed_to is not None:
            heir = graph.values[value.handed_to] if value.handed_to in values else None
            if heir is None or heir.arrives is None or value.leaves is None or heir.arrives <= value.leaves:
                raise illegal("graph-references", f"{name} handed to value {value.handed_to}")
    for index, recipe in enumerate(graph.recipes):
        name = recipe_name(graph, index)
        if recipe.id != index:
            raise illegal("graph-ids", f"{name} with id {recipe.id}")
        if recipe.segment not in segments:
            raise illegal("graph-references", f"{name} with segment {recipe.segment}")
        states = () if recipe.state is None else (recipe.state,)
        for value_id in (*recipe.outputs, *recipe.read_values, *states, *(t.value for t in recipe.consumes)):
            if value_id not in values:
                raise illegal("graph-references", f"{name} with value {value_id}")
        if len(set(recipe.outputs)) != len(recipe.outputs):
            raise illegal("graph-references", f"{name} with an output twice")
    for recipe_id in (*graph.program, *(r for g in graph.groups for o in g.options for r in o.recipes)):
        if recipe_id not in recipes:
            raise illegal("graph-references", f"the program or a group with recipe {recipe_id}")


def _numbers(graph: Graph) -> None:
    most_B, most_s = MOST_B, MOST_s
    for value in graph.values:
        most_B -= value.size_B
        if value.size_B < 0 or most_B < 0:
            raise illegal("graph-numbers", f"{value_name(graph, value.id)} of {value.size_B} B")
    for recipe in graph.recipes:
        most_s -= recipe.time_s
        is_issued = 0 <= recipe.issue_s <= MOST_s
        is_timed = math.isfinite(recipe.time_s) and recipe.time_s >= 0 and most_s >= 0
        if not (is_timed and is_issued) or recipe.trace.workers_B < 0:
            raise illegal("graph-numbers", recipe_name(graph, recipe.id))
        if sum(e for e in recipe.trace.events if e > 0) + recipe.trace.workers_B > MOST_B:
            raise illegal("graph-numbers", f"the trace of {recipe_name(graph, recipe.id)}")


def _geometries(graph: Graph) -> None:
    for value in graph.values:
        if value.geometry is not None and not is_sensible(value.geometry):
            raise illegal("graph-numbers", f"the geometry of {value_name(graph, value.id)}")
    for recipe in graph.recipes:
        if any(r.geometry is not None and not is_sensible(r.geometry) for r in recipe.reads):
            raise illegal("graph-numbers", f"the geometry of what {recipe_name(graph, recipe.id)} reads")


def is_sensible(geometry: Geometry) -> bool:
    """Whether a geometry is one of a tensor, however large."""
    sizes = (*geometry.shape, geometry.offset)
    fits = len(geometry.shape) == len(geometry.stride) and all(0 <= n <= MOST_B for n in sizes)
    return fits and geometry.dtype in ITEM_B


def _arguments(graph: Graph, recipe: Recipe) -> None:
    for argument in (*recipe.args, *(a for _, a in recipe.kwargs)):
        if _depth(argument) > _DEEPEST:
            raise illegal("graph-references", f"{recipe_name(graph, recipe.id)} with lists in one another")
        for ref in _refs(argument):
            if not 0 <= ref.index < len(recipe.reads):
                raise illegal("graph-references", f"{recipe_name(graph, recipe.id)} with an argument {ref}")
    if recipe.paths and len(recipe.paths) != len(_tensors(recipe)):
        raise illegal("graph-references", f"{recipe_name(graph, recipe.id)} with {len(recipe.paths)} output paths")


def _depth(argument: Arg) -> int:
    """How many lists an argument has in one another."""
    depth, level = 0, [argument]
    while lists := [a for a in level if isinstance(a, Items)]:
        depth, level = depth + 1, [item for a in lists for item in a.items]
    return depth


def _refs(argument: Arg) -> Iterator[Ref]:
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, Items):
        for item in argument.items:
            yield from _refs(item)


def _tensors(recipe: Recipe) -> tuple[int, ...]:
    """The outputs that the operator itself returns: all but a saved generator state."""
    return recipe.outputs[:-1] if recipe.effect is Effect.RANDOM and recipe.state is not None else recipe.outputs


def _state(graph: Graph, recipe: Recipe) -> None:
    if recipe.state is None:
        return
    saves = recipe.effect is Effect.RANDOM and recipe.outputs[-1:] == (recipe.state,)
    replays = recipe.effect is Effect.PURE and recipe.state not in recipe.outputs
    if not (saves or replays):
        raise illegal("graph-states", recipe_name(graph, recipe.id))


def _takeovers(graph: Graph, recipe: Recipe) -> None:
    name = recipe_name(graph, recipe.id)
    lost = [t.value for t in recipe.consumes]
    heirs = [t.output for t in recipe.consumes if t.output is not None]
    if len(set(lost)) != len(lost) or len(set(heirs)) != len(heirs):
        raise illegal("graph-takeovers", name)
    for takeover in recipe.consumes:
        value = graph.values[takeover.value]
        if value.id in recipe.outputs or value.id not in recipe.read_values:
            raise illegal("graph-takeovers", f"{name} with {value_name(graph, value.id)}")
        if takeover.output is None:
            continue
        if not 0 <= takeover.output < len(_tensors(recipe)):
            raise illegal("graph-takeovers", f"{name} with output {takeover.output}")
        heir = recipe.outputs[takeover.output]
        if graph.values[heir].size_B != value.size_B:
            raise illegal("graph-takeovers", f"{name} with {value_name(graph, heir)}")


def _trace(graph: Graph, recipe: Recipe) -> None:
    name = recipe_name(graph, recipe.id)
    sizes_B: list[int] = []
    live: set[int] = set()
    for event in recipe.trace.events:
        if event >= 0:
            live.add(len(sizes_B))
            sizes_B.append(event)
        elif -event - 1 in live:
            live.remove(-event - 1)
        else:
            raise illegal("graph-traces", f"{name} releasing allocation {-event - 1}")
    tensors = _tensors(recipe)
    allocations = recipe.trace.outputs
    if allocations[len(tensors) :] == (None,) and tensors != recipe.outputs:
        allocations = allocations[:-1]  # a saved state may be listed; it is allocated outside the trace
    if len(allocations) != len(tensors):
        raise illegal("graph-traces", f"{name} with {len(allocations)} traced outputs of {len(tensors)}")
    heirs = {recipe.outputs[t.output] for t in recipe.consumes if t.output is not None}
    for value, allocation in zip(tensors, allocations, strict=True):
        size_B = graph.values[value].size_B
        if allocation is None:
            if size_B and value not in heirs:
                raise illegal("graph-traces", f"{name} without an allocation for {value_name(graph, value)}")
        elif allocation not in live or sizes_B[allocation] != size_B or value in heirs:
            raise illegal("graph-traces", f"{name} with allocation {allocation} for {value_name(graph, value)}")
        else:
            live.remove(allocation)  # so that no other output can claim it
    if live:
        raise illegal("graph-traces", f"{name} never releasing allocation {min(live)}")


def _groups(graph: Graph) -> None:
    program = set(graph.program)
    owner: dict[int, str] = {}
    for group in graph.groups:
        members = {r for option in group.options for r in option.recipes}
        first = set(group.options[0].recipes) if group.options else set()
        if not members or (members & program) - first:
            raise illegal("graph-groups", f"group {group.name!r}")
        for recipe in members:
            if recipe in owner:
                name = recipe_name(graph, recipe)
                raise illegal("graph-groups", f"{name} of groups {owner[recipe]!r} and {group.name!r}")
            owner[recipe] = group.name


def _effects(graph: Graph) -> None:
    slots = effect_slots(graph)
    for group in graph.groups:
        places = [[slots.get(r) for r in _effectful(graph, option)] for option in group.options]
        if any(p != places[0] or p != sorted(s for s in p if s is not None) for p in places):
            raise illegal("graph-effects", f"group {group.name!r}")
    for recipe in graph.recipes:
        if recipe.effect is not Effect.PURE and recipe.id not in slots:
            raise illegal("graph-effects", recipe_name(graph, recipe.id))


def _origins(graph: Graph) -> None:
    for value in graph.values:
        arrives = value.arrives is not None
        if (not arrives and not graph.producers[value.id]) or (value.persistent and not arrives):
            raise illegal("graph-origins", value_name(graph, value.id))


def _host_resident(graph: Graph) -> None:
    for value in graph.values:
        if value.memory not in (DEVICE, HOST):
            raise illegal("graph-references", f"{value_name(graph, value.id)} in memory {value.memory!r}")
        if value.memory != DEVICE and not (value.persistent or value.leaves is not None):
            raise illegal("graph-residency", value_name(graph, value.id))
        if value.replaces is None:
            continue
        base = graph.values[value.replaces] if 0 <= value.replaces < len(graph.values) else None
        if base is None or not base.persistent or value.leaves is None:
            raise illegal("graph-residency", value_name(graph, value.id))
        if (base.size_B, base.memory) != (value.size_B, value.memory):
            raise illegal("graph-residency", value_name(graph, value.id))


def _parts(graph: Graph) -> None:
    parts = [value_parts(graph, v.id) for v in graph.values]
    for recipe in graph.recipes:
        for value in (*recipe.read_values, *recipe.outputs):
            if graph.segments[recipe.segment].part not in parts[value]:
                raise illegal("graph-parts", f"{recipe_name(graph, recipe.id)} with {value_name(graph, value)}")


def _program(graph: Graph) -> None:
    """Runs the program plainly, keeping everything."""
    there = {v.id for v in graph.values if v.persistent}
    segment = -1
    seen: set[int] = set()
    for index in graph.program:
        recipe = graph.recipes[index]
        name = recipe_name(graph, index)
        if index in seen or recipe.segment < segment:
            raise illegal("graph-program", name)
        seen.add(index)
        for begun in range(segment + 1, recipe.segment + 1):
            there -= {v.id for v in graph.values if v.leaves == begun - 1 and not (v.held or v.persistent)}
            there |= {v.id for v in graph.values if v.arrives == begun}
        segment = max(segment, recipe.segment)
        for read in recipe.read_values:
            through = graph.values[read].readable_through
            if read not in there or (through is not None and segment > through):
                raise illegal("graph-program", f"{name} reading {value_name(graph, read)}")
        there -= {t.value for t in recipe.consumes}
        if made := [v for v in recipe.outputs if v in there]:
            raise illegal("graph-program", f"{name} making {value_name(graph, made[0])} again")
        there |= set(recipe.outputs)
    for value in graph.values:
        made_by = [r for r in graph.producers[value.id] if r in seen]
        if value.leaves is None or value.arrives is not None:
            continue
        if not made_by or graph.recipes[made_by[0]].segment > value.leaves:
            raise illegal("graph-program", f"leaving {value_name(graph, value.id)}")
