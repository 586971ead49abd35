"""Who holds which bytes when: every allocation of a plan as a rectangle in (time, address).

Units: `_B` bytes, `_s` seconds; ticks count allocations and releases, as in `ir.layout.Block`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lowtide.ir.compiled_names import said_of
from lowtide.ir.graph import Graph, Role, Value
from lowtide.ir.layout import Block, Layout
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import Run, Schedule
from lowtide.ir.sequence import blocks_of
from lowtide.ir.simulate import simulate
from lowtide.report.recomputations import recompute_steps

KINDS = {
    "persistent": "persistent: parameters, buffers",
    "activation": "values of the forward",
    "again": "values recomputed or fetched",
    "backward": "values of the backward",
    "gradient": "gradients handed over",
    "temporary": "temporaries inside an operator",
    "outside": "held by others, and the reserve",
}
"""What a rectangle may be, and how a legend says it."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Bytes `[offset_B, offset_B + size_B)` in ticks `[start, stop)`.

    Arguments:
        kind: one of `KINDS`.
        name: of the value; empty for a temporary.
        op: the operator that allocates it; empty where none does.
        place: submodule and source line; empty where there is none.
        step: the run that allocates it; None for what is there from the start.
    """

    kind: str
    name: str
    op: str
    place: str
    step: int | None
    start: int
    stop: int
    offset_B: int
    size_B: int


@dataclass(frozen=True)
class AddressMap:
    """The rectangles of a plan.

    Arguments:
        rectangles: those of the layout in the order of their allocation; what is persistent and what is set aside
            lies above the layout, in an order that the plan does not fix.
        clock: (tick, seconds), not decreasing in either; between two of them time is taken to pass evenly.
        height_B: of the layout; above it lies what no plan drops.
        top_B: of everything.
    """

    rectangles: tuple[Rectangle, ...]
    clock: tuple[tuple[int, float], ...]
    height_B: int
    top_B: int

    @property
    def ticks(self) -> int:
        """When the schedule has ended."""
        return self.clock[-1][0]

    def time_s(self, tick: int) -> float:
        """The predicted time of a tick. O(log ticks)."""
        index = bisect_right(self._ticks, tick)
        if index in (0, len(self.clock)):
            return self.clock[index - 1 if index else 0][1]
        (before, before_s), (after, after_s) = self.clock[index - 1], self.clock[index]
        return before_s + (after_s - before_s) * (tick - before) / (after - before)

    @cached_property
    def _ticks(self) -> list[int]:
        return [tick for tick, _ in self.clock]


def address_map(record: PlanRecord) -> AddressMap | None:
    """The rectangles of a plan; None for a plan without addresses. O(steps + blocks)."""
    layout = record.layout
    if layout is None:
        return None
    clock = _clock(record.graph, record.schedule)
    rectangles = [*_planned(record.graph, record.schedule, layout), *_fixed(record, layout, clock[-1][0])]
    top_B = max((r.offset_B + r.size_B for r in rectangles), default=0)
    return AddressMap(tuple(rectangles), clock, layout.height_B, max(top_B, record.reserved_B))


def _planned(graph: Graph, schedule: Schedule, layout: Layout) -> Iterator[Rectangle]:
    recomputations = recompute_steps(graph, schedule)
    for block, offset_B in zip(layout.blocks, layout.offsets_B, strict=True):
        step = schedule.steps[block.step]
        op = place = ""
        kind = "temporary"
        if isinstance(step, Run):
            recipe = graph.recipes[step.recipe]
            op, place = said_of(recipe.op), _place(recipe.origin.module, recipe.origin.source)
            if block.value is not None:
                backward = "backward" in graph.segments[recipe.segment].name
                kind = _kind(graph.values[block.value], block.step in recomputations, backward)
        name = "" if block.value is None else graph.values[block.value].name
        yield Rectangle(kind, name, op, place, block.step, block.start, block.stop, offset_B, block.size_B)


def _kind(value: Value, again: bool, backward: bool) -> str:
    if again:
        return "again"
    if value.role is Role.GRADIENT:
        return "gradient"
    return "backward" if backward else "activation"


def _fixed(record: PlanRecord, layout: Layout, ticks: int) -> Iterator[Rectangle]:
    """What is there throughout: at its address where that is known, else stacked upon the layout."""
    for live_block in layout.live_blocks:
        yield _lasting("outside", "a tensor of an earlier step", ticks, live_block.offset_B, live_block.size_B)
    at_B = layout.height_B
    persistent = [("persistent", v.name, v.size_B) for v in record.graph.values if v.persistent]
    persistent.append(("persistent", "persistent tensors that the graph does not read", record.outside_B))
    persistent.append(("outside", "reserve: tiny blocks, worker threads, code between the segments", record.reserve_B))
    for kind, name, size_B in persistent:
        if size_B:
            yield _lasting(kind, name, ticks, at_B, size_B)
            at_B += size_B


def _lasting(kind: str, name: str, ticks: int, offset_B: int, size_B: int) -> Rectangle:
    return Rectangle(kind, name, "", "", None, 0, ticks, offset_B, size_B)


def _clock(graph: Graph, schedule: Schedule) -> tuple[tuple[int, float], ...]:
    """When ticks happen: the first of a step at its start, the last inside it at its end."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    end = 1
    for block in blocks_of(graph, schedule, small_B=0):
        first[block.step] = min(first.get(block.step, block.start), block.start)
        last[block.step] = max(last.get(block.step, 0), _last_inside(block))
        end = max(end, block.stop)
    timeline = simulate(graph, schedule)
    clock = [(0, 0.0)]
    for instant in timeline.instants:
        if instant.step in first:
            clock.append((first[instant.step], instant.start_s))
            clock.append((max(last[instant.step], first[instant.step] + 1), instant.stop_s))
    clock.append((end, timeline.time_s))
    return _monotone(clock)


def _last_inside(block: Block) -> int:
    """The last tick that a block gives to the step which allocates it."""
    return block.stop if block.value is None else block.start


def _monotone(clock: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """One entry per tick, the latest, with times that do not decrease."""
    rising: dict[int, float] = {}
    latest_s = 0.0
    for tick, time_s in sorted(clock):
        latest_s = max(latest_s, time_s)
        rising[tick] = latest_s
    return tuple(rising.items())


def _place(*parts: str) -> str:
    return " ".join(part for part in parts if part)
