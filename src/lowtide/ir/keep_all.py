"""What the captured network does by itself, as a schedule: every recipe once, every value kept until its last use."""

from __future__ import annotations

from lowtide.ir.graph import Effect, Graph
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule, Step


def keep_all_schedule(graph: Graph) -> Schedule:
    """The program with each value dropped after its last reader: the yardstick in every picture.

    Arguments:
        graph: its program is in a legal order.

    Returns:
        One `Run` per recipe of the program. O(reads).
    """
    last = _last_reads(graph)
    steps: list[Step] = []
    alive: set[int] = set()
    segment = -1
    for position, recipe_id in enumerate(graph.program):
        recipe = graph.recipes[recipe_id]
        while segment < recipe.segment:
            segment += 1
            _enter(graph, segment, steps, alive, last)
        saved = {recipe.state} if recipe.effect is Effect.RANDOM else set()  # replays alone read the state
        keep = tuple(v for v in recipe.outputs if v not in saved and (v in last or _is_permanent(graph, v)))
        steps.append(Run(recipe_id, keep))
        alive.update(keep)
        alive.difference_update(t.value for t in recipe.consumes)
        for value in sorted(v for v in (*recipe.read_values, *keep) if last.get(v, position) == position):
            if value in alive and not _is_permanent(graph, value):
                alive.discard(value)
                steps.append(Drop(value))
    while segment + 1 < len(graph.segments):
        segment += 1
        _enter(graph, segment, steps, alive, last)
    return Schedule(tuple(steps))


def _last_reads(graph: Graph) -> dict[int, int]:
    """Per value that the program reads, the position of its last reader."""
    return {value: at for at, recipe in enumerate(graph.program) for value in graph.recipes[recipe].read_values}


def _is_permanent(graph: Graph, value: int) -> bool:
    """Whether the program itself may not drop it: it is persistent, or belongs to the caller."""
    return graph.values[value].persistent or graph.values[value].leaves is not None


def _enter(graph: Graph, segment: int, steps: list[Step], alive: set[int], last: dict[int, int]) -> None:
    steps.append(Boundary(segment))
    for value in graph.arriving:
        if value.arrives == segment and not value.persistent:
            alive.add(value.id)
            if value.id not in last and value.leaves is None:
                alive.discard(value.id)
                steps.append(Drop(value.id))
