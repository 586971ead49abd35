"""Hides generator states: the smaller problem sees a random recipe that can simply be recomputed.

The inverse (`save_states`) makes the first run keep the generator's state iff a replay is scheduled, and drops the
state after the last one. The states' bytes are set aside beforehand (`reserve_B`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lowtide.ir.graph import Effect, Graph
from lowtide.ir.schedule import Drop, Run, Step


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
