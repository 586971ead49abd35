"""What a plan's copies on the host take with the holes between them, served best fit as they come.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide._core import Arena
from lowtide.ir.graph import Graph
from lowtide.ir.layout import ALIGNMENT_B
from lowtide.ir.schedule import DEVICE, HOST, Drop, Run, Schedule, Send, memory_of

_ENDLESS_B = 2**52


def host_height_B(graph: Graph, schedule: Schedule, limit_B: int | None = None) -> int:
    """How high the copies reach that a schedule makes on the host; host-resident values lie elsewhere.

    Arguments:
        graph: with the host-resident values of the schedule.
        limit_B: where the pool ends; best fit looks at the hole below it as well. None for no end.

    Returns: no more than `limit_B` where that is enough; else what would be, without a limit.

    O(steps log steps).
    """
    heights_B = [_height_B(graph, schedule, w) for w in ((_ENDLESS_B,) if limit_B is None else (limit_B, _ENDLESS_B))]
    return next(h for h in heights_B if h is not None)


def _height_B(graph: Graph, schedule: Schedule, limit_B: int) -> int | None:
    pool = Arena(max(limit_B // ALIGNMENT_B, 1) * ALIGNMENT_B, ALIGNMENT_B)
    there: dict[int, int | None] = {}
    for value, comes in _traffic(graph, schedule):
        if comes:
            size_B = graph.values[value].size_B
            there[value] = pool.allocate(size_B) if size_B else None
            if size_B and there[value] is None:
                return None
        elif (offset_B := there.pop(value, None)) is not None:
            pool.free(offset_B)
    return pool.statistics().high_water_B


def _traffic(graph: Graph, schedule: Schedule) -> Iterator[tuple[int, bool]]:
    """Values that take bytes of the host's pool, and that free theirs, in order."""
    place = {v.id for v in graph.values if v.memory == HOST and (v.persistent or v.replaces is not None)}
    lodger: dict[int, int] = {}  # value -> the one whose bytes it took over
    for step in schedule.steps:
        match step:
            case Send(value=value) if value not in place:
                yield value, True
            case Drop(value=value, memory=memory) if memory != DEVICE and value not in place:
                yield lodger.pop(value, value), False
            case Run(recipe=recipe, keep=keep) if memory_of(graph.recipes[recipe].engine) != DEVICE:
                found = graph.recipes[recipe]
                heirs = {found.outputs[t.output]: t.value for t in found.consumes if t.output is not None}
                for value in keep:
                    if value in heirs:
                        lodger[value] = lodger.pop(heirs[value], heirs[value])
                    else:
                        yield value, True
                for value in (t.value for t in found.consumes):
                    if value not in lodger.values() and value not in place:
                        yield value, False
