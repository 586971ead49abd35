"""What two graphs have in common: the same program, the same bytes, how far apart their seconds are. Torch-free.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from lowtide.ir.graph import Graph, Origin, Recipe, Role, Takeover, Value

_NAMED = 3  # inputs that a text of shapes spells out


def structure(graph: Graph) -> str:
    """Names a program whatever its sizes.

    Two graphs with the same structure have the same ids, and a schedule that is legal for one is legal for the other
    as far as order goes; bytes and seconds may differ. Names, source lines and constant arguments do not count.

    Returns: 16 hexadecimal digits. O(graph) the first time.
    """
    return _once(graph, "_structure", _structure)


def _once(graph: Graph, name: str, find: Callable[[Graph], str]) -> str:
    """What is found out about a graph once: it never changes."""
    known: dict[str, str] = graph.__dict__
    if name not in known:
        known[name] = find(graph)
    return known[name]


def _structure(graph: Graph) -> str:
    digest = hashlib.sha256()
    for value in graph.values:
        boundary = (value.arrives, value.leaves, value.readable_through, value.handed_to)
        digest.update(msgspec.json.encode((value.role, value.persistent, value.held, boundary)))
    for recipe in graph.recipes:
        reads = [r.value for r in recipe.reads]
        facts = (recipe.op, recipe.outputs, reads, recipe.segment, recipe.effect, recipe.consumes, recipe.engine)
        digest.update(msgspec.json.encode((*facts, recipe.state)))
    digest.update(msgspec.json.encode((graph.program, [s.part for s in graph.segments], graph.groups)))
    return digest.hexdigest()[:16]


def memory(graph: Graph) -> str:
    """Names everything on which the bytes of a schedule depend: the program, sizes, layouts and mini-traces.

    Returns: 16 hexadecimal digits. O(graph) the first time.
    """
    return _once(graph, "_memory", _memory)


def _memory(graph: Graph) -> str:
    digest = hashlib.sha256(structure(graph).encode())
    digest.update(msgspec.json.encode([(v.size_B, v.geometry) for v in graph.values]))
    digest.update(msgspec.json.encode([r.trace for r in graph.recipes]))
    return digest.hexdigest()[:16]


def renumbered(graph: Graph) -> Graph:
    """The same graph with ids that follow from the program, and without the names that are for people.

    Values are counted as the program comes to them, those that it never touches last; recipes in program order,
    alternatives by what they make. So two graphs that differ in ids alone become equal. O(graph).
    """
    program = set(graph.program)
    order = [v for r in graph.program for v in (*graph.recipes[r].read_values, *graph.recipes[r].outputs)]
    value_ids = {v: i for i, v in enumerate(dict.fromkeys((*order, *range(len(graph.values)))))}
    others = (r for r in graph.recipes if r.id not in program)
    ranked = sorted(others, key=lambda r: (min((value_ids[v] for v in r.outputs), default=-1), r.id))
    recipe_ids = {r: i for i, r in enumerate((*graph.program, *(r.id for r in ranked)))}
    recipes = tuple(_renamed(graph.recipes[r], i, value_ids) for r, i in recipe_ids.items())
    values = tuple(_unnamed(graph.values[v], i, value_ids) for v, i in value_ids.items())
    groups = tuple(g.renumbered(recipe_ids) for g in graph.groups)
    return Graph(values, recipes, tuple(range(len(graph.program))), graph.segments, groups)


def _unnamed(value: Value, index: int, ids: dict[int, int]) -> Value:
    heir = None if value.handed_to is None else ids[value.handed_to]
    return msgspec.structs.replace(value, id=index, name="", handed_to=heir)


def _renamed(recipe: Recipe, index: int, ids: dict[int, int]) -> Recipe:
    return msgspec.structs.replace(
        recipe,
        id=index,
        outputs=tuple(ids[v] for v in recipe.outputs),
        reads=tuple(msgspec.structs.replace(r, value=ids[r.value]) for r in recipe.reads),
        consumes=tuple(Takeover(ids[t.value], t.output) for t in recipe.consumes),
        state=None if recipe.state is None else ids[recipe.state],
        origin=Origin(),
    )


def seconds_apart(one: Graph, other: Graph) -> float:
    """How much the seconds of two graphs of the same structure differ, as a fraction of the first one's."""
    total_s = sum(r.time_s for r in one.recipes)
    apart_s = sum(abs(a.time_s - b.time_s) for a, b in zip(one.recipes, other.recipes, strict=True))
    return apart_s / total_s if total_s > 0 else float(apart_s > 0)


def size_B(graph: Graph) -> int:
    """Bytes of every value together: what orders the shapes of one program."""
    return sum(v.size_B for v in graph.values)


def shapes(graph: Graph) -> str:
    """The inputs that the caller gives, as text: `"input_ids int64[6, 128], labels int64[6, 128]"`."""
    given = [v for v in graph.values if v.role is Role.INPUT and v.geometry is not None]
    texts = [f"{_name(v.name)}{v.geometry.dtype}{list(v.geometry.shape)}" for v in given if v.geometry is not None]
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _name(name: str) -> str:
    """A name and a space; nothing for arguments that have no name but their place."""
    return "" if name.isdigit() else f"{name} "
