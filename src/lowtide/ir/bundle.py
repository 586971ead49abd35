"""Several captured graphs as one: their forwards in order, then their backwards in reverse, under one budget.

A graph break splits a step into parts. Between the parts the caller's code runs, so a value of one part can be
touched only in that part's own segments; what one part holds counts all the same while another runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from lowtide.ir.call import Read
from lowtide.ir.graph import Graph, Group, Recipe, Segment, Takeover, Value
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send, Step


class Part(msgspec.Struct, frozen=True):
    """One captured graph of a bundle.

    Arguments:
        graph: with one segment, or two.
        shared: values whose bytes another part already counts (a tied weight, the output of an earlier part).
        released: gradients that only another part's backward waits for: the caller frees them at once.
        handed: of those, per gradient, an earlier part and the value as which it arrives there.
    """

    graph: Graph
    shared: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()
    handed: tuple[tuple[int, tuple[int, int]], ...] = ()


class Bundle(msgspec.Struct, frozen=True):
    """A merged graph and its mapping to the parts.

    Arguments:
        graph: all parts on one timeline.
        values, recipes: per part, what its ids were raised by.
        segments: per part, the merged index of each of its segments.
    """

    graph: Graph
    values: tuple[int, ...]
    recipes: tuple[int, ...]
    segments: tuple[tuple[int, ...], ...]

    def schedule_of(self, schedule: Schedule, part: int) -> Schedule:
        """The steps of one part, in that part's own ids."""
        mine = {merged: local for local, merged in enumerate(self.segments[part])}
        value, recipe = self.values[part], self.recipes[part]
        steps: list[Step] = []
        here = -1
        for step in schedule.steps:
            if isinstance(step, Boundary):
                here = step.segment
                if here in mine:
                    steps.append(Boundary(mine[here]))
            elif here in mine:
                if isinstance(step, Run):
                    steps.append(Run(step.recipe - recipe, tuple(v - value for v in step.keep)))
                elif isinstance(step, Drop):
                    steps.append(Drop(step.value - value, step.memory))
                else:
                    kind = Send if isinstance(step, Send) else Fetch
                    steps.append(kind(step.value - value, step.memory))
        return Schedule(tuple(steps))

    def graph_of(self, part: int) -> Graph:
        """One part in that part's own ids, without groups. What another part counts is of no bytes here."""
        here = {merged: local for local, merged in enumerate(self.segments[part])}
        value, recipe = self.values[part], self.recipes[part]
        mine = [r for r in self.graph.recipes if r.segment in here]
        stop = self.values[part + 1] if part + 1 < len(self.values) else len(self.graph.values)
        return Graph(
            values=tuple(_returned(v, value, here) for v in self.graph.values[value:stop]),
            recipes=tuple(_recipe(r, -value, -recipe, here) for r in mine),
            program=tuple(r - recipe for r in self.graph.program if self.graph.recipes[r].segment in here),
            segments=tuple(Segment(self.graph.segments[s].name.rpartition(" ")[0]) for s in self.segments[part]),
            key=self.graph.key,
        )


def unmerged(graph: Graph) -> Bundle:
    """Finds the parts of a merged graph, perhaps one from a file: each has its values, recipes and segments together.

    Arguments:
        graph: as `merge` makes it, or with fewer implementations. O(graph).
    """
    parts = range(max(s.part for s in graph.segments) + 1)
    segments = tuple(tuple(i for i, s in enumerate(graph.segments) if s.part == part) for part in parts)
    values, recipes = [len(graph.values)] * len(parts), [len(graph.recipes)] * len(parts)
    for recipe in reversed(graph.recipes):
        recipes[graph.segments[recipe.segment].part] = recipe.id
    for value in reversed(graph.values):
        arrives = value.arrives
        segment = graph.recipes[graph.producers[value.id][0]].segment if arrives is None else arrives
        values[graph.segments[segment].part] = value.id
    for part in reversed(parts[:-1]):  # one without values or recipes begins where the next one does
        values[part] = min(values[part], values[part + 1])
        recipes[part] = min(recipes[part], recipes[part + 1])
    return Bundle(graph, tuple(values), tuple(recipes), segments)


def merge(parts: Sequence[Part]) -> Bundle:
    """Puts the parts on one timeline: first segments in order, second segments in reverse. O(recipes + values)."""
    later = [i for i in reversed(range(len(parts))) if len(parts[i].graph.segments) > 1]
    place = {(i, 0): i for i in range(len(parts))} | {(p, 1): len(parts) + k for k, p in enumerate(later)}
    segments = [Segment("", 0)] * len(place)
    values: list[Value] = []
    recipes: list[Recipe] = []
    groups: list[Group] = []
    program: list[list[int]] = [[] for _ in place]
    value_base, recipe_base = [], []
    for index, part in enumerate(parts):
        graph = part.graph
        value_base.append(len(values))
        recipe_base.append(len(recipes))
        spot = [place[index, s] for s in range(len(graph.segments))]
        for local, segment in enumerate(graph.segments):
            segments[spot[local]] = Segment(f"{segment.name} {index + 1}", index)
        heirs = {gradient: value_base[to] + value for gradient, (to, value) in part.handed}
        values += [_value(v, part, value_base[-1], spot, heirs.get(v.id)) for v in graph.values]
        recipes += [_recipe(r, value_base[-1], recipe_base[-1], spot) for r in graph.recipes]
        ids = range(recipe_base[-1], recipe_base[-1] + len(graph.recipes))
        groups += [g.renumbered(ids) for g in graph.groups]
        for recipe in graph.program:
            program[spot[graph.recipes[recipe].segment]].append(recipe + recipe_base[-1])
    key = hashlib.sha256("+".join(p.graph.key for p in parts).encode()).hexdigest()[:16]
    merged = Graph(
        values=tuple(values),
        recipes=tuple(recipes),
        program=tuple(r for segment in program for r in segment),
        segments=tuple(segments),
        groups=tuple(groups),
        key=key,
    )
    spots = tuple(tuple(place[i, s] for s in range(len(p.graph.segments))) for i, p in enumerate(parts))
    return Bundle(merged, tuple(value_base), tuple(recipe_base), spots)


def _value(value: Value, part: Part, base: int, spot: Sequence[int], heir: int | None) -> Value:
    return msgspec.structs.replace(
        value,
        id=value.id + base,
        size_B=0 if value.id in part.shared else value.size_B,
        arrives=None if value.arrives is None else spot[value.arrives],
        leaves=None if value.leaves is None else spot[value.leaves],
        held=value.held and value.id not in part.released,
        readable_through=None if value.readable_through is None else spot[value.readable_through],
        handed_to=heir,
    )


def _returned(value: Value, base: int, here: Mapping[int, int]) -> Value:
    return msgspec.structs.replace(
        value,
        id=value.id - base,
        arrives=None if value.arrives is None else here[value.arrives],
        leaves=None if value.leaves is None else here[value.leaves],
        readable_through=None if value.readable_through is None else here[value.readable_through],
        handed_to=None,
    )


def _recipe(recipe: Recipe, values: int, recipes: int, spot: Mapping[int, int] | Sequence[int]) -> Recipe:
    return msgspec.structs.replace(
        recipe,
        id=recipe.id + recipes,
        outputs=tuple(v + values for v in recipe.outputs),
        reads=tuple(Read(r.value + values, r.views, r.geometry) for r in recipe.reads),
        consumes=tuple(Takeover(t.value + values, t.output) for t in recipe.consumes),
        segment=spot[recipe.segment],
        state=None if recipe.state is None else recipe.state + values,
    )
