"""Hides from the smaller problem what makes recomputations possible, or cheap.

**Generator states.** The smaller problem sees a random recipe that can simply be recomputed. The inverse
(`save_states`) makes the first run keep the generator's state iff a replay is scheduled, and drops the state after the
last one. The states' bytes are set aside beforehand (`reserve_B`).

**Small results**: with batch norm's statistics its output takes one pass. A recipe of the program has a *shortcut* if
another recipe makes its large outputs from the same reads and from its own small outputs. The smaller problem sees one
stage that is recomputed at the shortcut's cost; what the shortcut needs besides (the small outputs), and what only the
first run reads (a copy of the running statistics), is hidden. The inverse (`keep_hidden`) lets the first run keep what
is hidden until its last reader. Their bytes are set aside beforehand (`hidden_B`); bounds take them to weigh nothing.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from msgspec.structs import replace

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.schedule import Drop, Run, Step

LEAST_RATIO = 16  # of what the shortcut makes to what has to be kept for it


@dataclass(frozen=True, slots=True)
class Shortcut:
    """How a recipe is recomputed: the recipe that stands for it, and the values that are hidden for its sake."""

    recipe: int
    hidden: tuple[int, ...]


def find_shortcuts(graph: Graph, program: Sequence[int], allowed: Collection[int]) -> dict[int, Shortcut]:
    """Finds the fastest shortcut of every recipe of the program that has one.

    Arguments:
        program: recipes that run.
        allowed: recipes that may run.

    Returns: recipe -> shortcut, none of which takes longer than the recipe itself. O(graph).
    """
    place = {r: i for i, r in enumerate(program)}
    maker = {v: r for r in program for v in graph.recipes[r].outputs}
    found: dict[int, Shortcut] = {}
    for recipe in graph.recipes:
        first = maker.get(recipe.outputs[0]) if recipe.outputs else None
        if first is None or recipe.id in place or recipe.id not in allowed:
            continue
        hidden = hidden_for(graph, graph.recipes[first], recipe)
        if not hidden or any(v not in maker or graph.recipes[maker[v]].effect is not Effect.PURE for v in hidden):
            continue
        other = found.get(first)
        if other is None or recipe.time_s < graph.recipes[other.recipe].time_s:
            found[first] = Shortcut(recipe.id, hidden)
    return found


def hidden_for(graph: Graph, first: Recipe, again: Recipe) -> tuple[int, ...]:
    """What has to be hidden so that one recipe may stand for recomputations of the other; nothing if it cannot."""
    small = set(first.outputs).difference(again.outputs)
    if first.effect is not Effect.PURE or again.effect is not Effect.PURE or not small:
        return ()
    if again.consumes or again.state is not None or again.engine != first.engine or again.segment != first.segment:
        return ()
    if not set(again.outputs) <= set(first.outputs) or not set(again.read_values) <= {*first.read_values, *small}:
        return ()
    if again.time_s > first.time_s:
        return ()
    read_once = {v for v in first.read_values if v not in again.read_values and not graph.values[v].persistent}
    hidden = tuple(sorted(small | read_once))
    large_B = sum(graph.values[v].size_B for v in again.outputs)
    small_B = sum(graph.values[v].size_B for v in hidden) + _excess_B(first, again)
    return hidden if LEAST_RATIO * small_B <= large_B else ()


def _excess_B(first: Recipe, again: Recipe) -> int:
    """Bytes that a recomputation allocates beyond the first run: the smaller problem does not see them either."""
    return max(0, again.trace.peak_B - first.trace.peak_B)


def hidden_values(shortcuts: Mapping[int, Shortcut]) -> frozenset[int]:
    """Values that the smaller problem does not know."""
    return frozenset(v for s in shortcuts.values() for v in s.hidden)


def hidden_B(graph: Graph, program: Sequence[int], shortcuts: Mapping[int, Shortcut]) -> int:
    """Bytes that the hidden values take at most at once, in any plan, and what a recomputation may need besides.

    A value that first runs alone read is gone after the last of them; any other one may be kept to the end.
    """
    hidden, end = hidden_values(shortcuts), len(program)
    last = {v: end for v in hidden if graph.values[v].leaves is not None}
    for i, r in enumerate(program):
        again = graph.recipes[shortcuts[r].recipe].read_values if r in shortcuts else graph.recipes[r].read_values
        for v in hidden.intersection((*graph.recipes[r].read_values, *again)):
            last[v] = end if v in again else max(last.get(v, i), i)
    change_B = [0] * (end + 2)
    for i, r in enumerate(program):
        for v in hidden.intersection(graph.recipes[r].outputs):
            change_B[i] += graph.values[v].size_B
            change_B[last.get(v, i) + 1] -= graph.values[v].size_B
    excess_B = (_excess_B(graph.recipes[r], graph.recipes[s.recipe]) for r, s in shortcuts.items())
    return max(accumulate(change_B)) + max(excess_B, default=0)


def keep_hidden(graph: Graph, steps: Sequence[Step], shortcuts: Mapping[int, Shortcut]) -> list[Step]:
    """The inverse: adds to a schedule that ignores hidden values their keeping and dropping. O(steps)."""
    hidden = hidden_values(shortcuts)
    if not hidden:
        return list(steps)
    last = {v: i for i, s in enumerate(steps) if isinstance(s, Run) for v in graph.recipes[s.recipe].read_values}
    lifted: list[Step] = []
    kept: set[int] = set()
    for index, step in enumerate(steps):
        if not isinstance(step, Run):
            lifted.append(step)
            continue
        recipe = graph.recipes[step.recipe]
        fresh = [v for v in recipe.outputs if v in hidden and v not in kept]
        fresh = [v for v in fresh if v in last or graph.values[v].leaves is not None]
        kept.update(fresh)
        lifted.append(replace(step, keep=(*step.keep, *fresh)) if fresh else step)
        ending = (v for v in recipe.read_values if v in hidden and last[v] == index)
        lifted.extend(Drop(v) for v in ending if graph.values[v].leaves is None)
    return lifted


@dataclass(frozen=True, slots=True)
class Replay:
    """How a random recipe is recomputed: the pure recipe that stands for it, and the state it reads."""

    recipe: int
    state: int


def find_replays(graph: Graph, program: Sequence[int], allowed: Collection[int]) -> dict[int, Replay]:
    """Finds the fastest replay of every random recipe of the program that has one.

    Arguments:
        program: recipes that run.
        allowed: recipes that may run.

    Returns: random recipe -> replay. A state that a recipe of the program itself reads is no hidden one.
    """
    read = {value for r in program for value in graph.recipes[r].read_values}
    running = set(program)
    by_state: dict[int, list[int]] = {}
    for recipe in graph.recipes:
        if recipe.effect is Effect.PURE and recipe.state is not None and recipe.id not in running:
            by_state.setdefault(recipe.state, []).append(recipe.id)
    found: dict[int, Replay] = {}
    for recipe_id in program:
        recipe = graph.recipes[recipe_id]
        if recipe.effect is not Effect.RANDOM or recipe.state is None or recipe.state in read:
            continue
        if graph.values[recipe.state].leaves is not None:
            continue
        candidates = [r for r in by_state.get(recipe.state, ()) if r in allowed]
        candidates = [
            r for r in candidates if graph.recipes[r].outputs == recipe.outputs[:-1] and not graph.recipes[r].consumes
        ]
        if candidates:
            best = min(candidates, key=lambda r: (graph.recipes[r].time_s, r))
            found[recipe_id] = Replay(best, recipe.state)
    return found


def reserve_B(graph: Graph, replays: Mapping[int, Replay]) -> int:
    """Bytes that the saved states can take at most: all of them, and the one a replay puts aside meanwhile."""
    sizes_B = [graph.values[r.state].size_B for r in replays.values()]
    return sum(sizes_B) + max(sizes_B, default=0)


def save_states(steps: Sequence[Step], replays: Mapping[int, Replay]) -> list[Step]:
    """The inverse: adds to a schedule that ignores states their saving and dropping. O(steps)."""
    state_of = {replay.recipe: replay.state for replay in replays.values()}
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Run) and step.recipe in state_of:
            last[state_of[step.recipe]] = index
    lifted: list[Step] = []
    for index, step in enumerate(steps):
        if isinstance(step, Run) and step.recipe in replays and replays[step.recipe].state in last:
            step = Run(step.recipe, (*step.keep, replays[step.recipe].state), step.after)
        lifted.append(step)
        if isinstance(step, Run) and last.get(state_of.get(step.recipe, -1)) == index:
            lifted.append(Drop(state_of[step.recipe]))
    return lifted
