"""One option of every group, as a program: the graph that every planner plans, and what a choice means.

Ids are unchanged, so a schedule of the chosen graph is one of the graph itself.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from lowtide.errors import PlanError
from lowtide.ir.chosen import chosen_options as chosen_options
from lowtide.ir.graph import Graph, Group

Choice = Mapping[int, int]
"""Group -> option; groups that are not named have their first."""


def choose(graph: Graph, choice: Choice) -> Graph:
    """The graph whose program runs the chosen options.

    A recipe that makes what one of the program's own makes takes its place. Any other one runs as soon as what it
    reads is there, in its segment.

    Arguments:
        graph: as enlarged.
        choice: by index.

    Returns: the same values and recipes; in every group the chosen option is the first. O(graph).

    Raises:
        PlanError: if what the options read goes round in a circle.
    """
    chosen = {g: k for g, k in choice.items() if k}
    if not chosen:
        return graph
    groups = tuple(_first(group, chosen.get(g, 0)) for g, group in enumerate(graph.groups))
    gone = {r for g in chosen for r in graph.groups[g].options[0].recipes}
    fresh = [r for g, k in sorted(chosen.items()) for r in graph.groups[g].options[k].recipes]
    return replace(graph, program=_program(graph, gone, fresh), groups=groups)


def _first(group: Group, option: int) -> Group:
    chosen = group.options[option]
    return replace(group, options=(chosen, *(o for o in group.options if o is not chosen)))


def _program(graph: Graph, gone: set[int], fresh: Sequence[int]) -> tuple[int, ...]:
    """Where every recipe runs: see `choose`."""
    recipes = graph.recipes
    place = {r: i for i, r in enumerate(graph.program)}
    begins: dict[int, int] = {}
    for r in graph.program:
        begins.setdefault(recipes[r].segment, place[r])
    taken = {v: place[r] for r in gone for v in recipes[r].outputs}
    at = {r: (place[r], 0) for r in graph.program if r not in gone}
    came = {v: at[r] for r in at for v in recipes[r].outputs}
    for rank, r in enumerate(_makers_first(graph, fresh), 1):
        recipe = recipes[r]
        own = [taken[v] for v in recipe.outputs if v in taken]
        after = max((came[v][0] for v in recipe.read_values if v in came), default=-1)
        begin = begins.get(recipe.segment, len(graph.program))
        at[r] = (max(min(own, default=begin - 1), after), rank)
        came.update(dict.fromkeys(recipe.outputs, at[r]))
    late = {v: came[v] for r in fresh for v in recipes[r].outputs}
    if any(late.get(v, at[r]) > at[r] for r in at for v in recipes[r].read_values):
        return _after_makers(graph, at)
    return tuple(sorted(at, key=lambda r: at[r]))


def _after_makers(graph: Graph, at: Mapping[int, tuple[int, int]]) -> tuple[int, ...]:
    """Recipes by place, those that read what is made behind their place right after that is made.

    An option that makes several values at once may make one later than the program does, once that has been reordered.

    Raises:
        PlanError: if what they read goes round in a circle.
    """
    maker = {v: r for r in at for v in graph.recipes[r].outputs}
    lacks = {r: {maker[v] for v in graph.recipes[r].read_values if v in maker} for r in at}
    readers: dict[int, list[int]] = defaultdict(list)
    for r, makers in lacks.items():
        for m in makers:
            readers[m].append(r)
    ready = [(at[r], r) for r, makers in lacks.items() if not makers]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, made = heapq.heappop(ready)
        order.append(made)
        for r in readers[made]:
            lacks[r].discard(made)
            if not lacks[r]:
                heapq.heappush(ready, (at[r], r))
    if len(order) < len(at):
        raise PlanError("the implementations chosen read each other's results")
    return tuple(order)


def _makers_first(graph: Graph, fresh: Sequence[int]) -> list[int]:
    """Recipes in an order in which each comes after those that make what it reads; otherwise as they were."""
    waiting = {v for r in fresh for v in graph.recipes[r].outputs}
    order: list[int] = []
    pending = list(fresh)
    while pending:
        ready = [r for r in pending if waiting.isdisjoint(graph.recipes[r].read_values)]
        if not ready:
            raise PlanError(f"the implementations chosen read each other's results: recipes {pending[:8]}")
        order += ready
        waiting.difference_update(v for r in ready for v in graph.recipes[r].outputs)
        pending = [r for r in pending if r not in ready]
    return order


def allowed_recipes(graph: Graph) -> frozenset[int]:
    """Ids of the recipes that may run when every group takes its first option. O(recipes)."""
    barred = {r for group in graph.groups for option in group.options[1:] for r in option.recipes}
    return frozenset(r.id for r in graph.recipes if r.id not in barred)


def fixes_choices(graph: Graph) -> bool:
    """Whether the reduction takes anything away."""
    return any(len(group.options) > 1 for group in graph.groups)
