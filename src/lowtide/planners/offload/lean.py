"""The same runs with copies back as late as can be and drops as early: values are resident for no longer than needed.

Well-timed copies (`transfers.py`) fill what the budget leaves, and values that come early leave holes between others:
addresses take more than live bytes do. A lean schedule packs best, and waits for its copies most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import DEVICE, HOST, Drop, Fetch, Run, Schedule, Send, Step, memory_of
from lowtide.planners.offload.waits import with_waits


def moves(schedule: Schedule) -> bool:
    """Whether a schedule copies anything. O(steps)."""
    return any(isinstance(s, Send | Fetch) for s in schedule.steps)


def lean(graph: Graph, schedule: Schedule) -> Schedule:
    """Puts every fetch right before what needs the value, every send and every drop right behind its last use.

    Arguments:
        graph: with the host-resident values of the schedule.
        schedule: legal.

    Returns: a legal schedule with all waits, of at most as many device bytes at once; host bytes may come a little
        earlier and go a little later. O(steps).
    """
    places = _Places([_Place() for _ in schedule.steps])
    due = _next_touches(graph, schedule.steps)
    last: dict[int, int] = {}  # value -> where its device copy was touched last
    back: dict[int, int] = {}  # value -> where it was fetched last
    for index, step in enumerate(schedule.steps):
        match step:
            case Fetch(value=value):
                back[value] = last[value] = due[index]
                places.of[due[index]].before.append(step)
            case Send(value=value):
                last[value] = at = last.get(value, index)
                places.of[at].after.append(step)
            case Drop(value=value, memory=memory) if memory == DEVICE:
                places.of[last.get(value, index)].after.append(step)
            case Drop(value=value) if back.get(value, -1) > index:  # before a run that may overwrite the device copy
                places.of[back[value]].before.append(step)
            case Drop():
                places.of[index].after.append(step)
            case _:
                places.of[index].own = step
                if isinstance(step, Run) and memory_of(graph.recipes[step.recipe].engine) == DEVICE:
                    last |= dict.fromkeys((*graph.recipes[step.recipe].read_values, *step.keep), index)
    return with_waits(graph, places.steps)


@dataclass
class _Place:
    """What stands where one step stood: what is fetched for it, the step itself, what goes behind it."""

    before: list[Step] = field(default_factory=list)
    own: Step | None = None
    after: list[Step] = field(default_factory=list)


@dataclass
class _Places:
    of: list[_Place]

    @property
    def steps(self) -> list[Step]:
        """All of them, in order."""
        return [s for p in self.of for s in (*p.before, *(() if p.own is None else (p.own,)), *p.after)]


def _next_touches(graph: Graph, steps: Sequence[Step]) -> dict[int, int]:
    """Per fetch, the step that touches the value next; itself if none does."""
    found: dict[int, int] = {}
    coming: dict[int, int] = {}
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if isinstance(step, Fetch):
            found[index] = coming.pop(step.value, index)
        elif isinstance(step, Run) and memory_of(graph.recipes[step.recipe].engine) == DEVICE:
            coming |= dict.fromkeys(graph.recipes[step.recipe].read_values, index)
        elif isinstance(step, Send) or (isinstance(step, Drop) and step.memory != HOST):
            coming[step.value] = index
    return found
