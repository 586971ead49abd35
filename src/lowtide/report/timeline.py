"""Memory over the time of one step, as data for every picture of it.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from lowtide.ir.graph import Graph
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import Drop, Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.report.headline import describe_step
from lowtide.report.recomputations import recompute_steps


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a schedule on the curve.

    Arguments:
        segment: index of the segment it belongs to.
        label: the operator, or what else the step does.
        place: submodule and source line; empty where there is none.
        again: the step runs a recipe that the schedule ran before, or the replay of one.
        peak_B: most bytes while it runs; `live_B` those when it is over.
        events: allocations and releases up to its end, counted from the first step.
    """

    step: int
    segment: int
    label: str
    place: str
    again: bool
    start_s: float
    stop_s: float
    peak_B: int
    live_B: int
    events: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment on the time axis."""

    name: str
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes over the predicted time of one step; all bytes include the persistent ones.

    Arguments:
        name: for the legend.
        points: in issue order.
        stretches: the segments.
        persistent_B: the level below which no plan can go.
    """

    name: str
    points: tuple[Point, ...]
    stretches: tuple[Stretch, ...]
    persistent_B: int

    @property
    def peak_B(self) -> int:
        """Most bytes at once."""
        return max((p.peak_B for p in self.points), default=self.persistent_B)

    @property
    def time_s(self) -> float:
        """When the last step ends."""
        return max((p.stop_s for p in self.points), default=0.0)

    @cached_property
    def _events(self) -> list[int]:
        return [p.events for p in self.points]

    def time_at(self, fraction: float) -> float:
        """The time at which that fraction of all allocations and releases has happened.

        An allocator's log knows the order of events but not their place in a step; this puts it next to the curve.

        Arguments:
            fraction: in [0, 1].
        """
        if not self.points or not self._events[-1]:
            return 0.0
        wanted = min(max(fraction, 0.0), 1.0) * self._events[-1]
        index = min(bisect_left(self._events, wanted), len(self.points) - 1)
        point, before = self.points[index], self._events[index - 1] if index else 0
        inside = (wanted - before) / (point.events - before) if point.events > before else 1.0
        return point.start_s + inside * (point.stop_s - point.start_s)


def memory_curve(graph: Graph, schedule: Schedule, name: str, outside_B: int = 0) -> MemoryCurve:
    """What a schedule means in bytes over time.

    Arguments:
        graph: profiled.
        schedule: legal for `graph`.
        name: for the legend.
        outside_B: bytes to add throughout, `PlanRecord.outside_B`.
    """
    points: list[Point] = []
    events, recomputations = 0, recompute_steps(graph, schedule)
    for instant in simulate(graph, schedule).instants:
        step = schedule.steps[instant.step]
        place = ""
        if isinstance(step, Run):
            recipe = graph.recipes[step.recipe]
            place = " ".join(part for part in (recipe.origin.module, recipe.origin.source) if part)
            events += max(1, len(recipe.trace.events))
        elif isinstance(step, Drop):
            events += 1
        points.append(
            Point(
                step=instant.step,
                segment=instant.segment,
                label=describe_step(graph, step),
                place=place,
                again=instant.step in recomputations,
                start_s=instant.start_s,
                stop_s=instant.stop_s,
                peak_B=instant.peak_B + outside_B,
                live_B=instant.live_after_B + outside_B,
                events=events,
            )
        )
    return MemoryCurve(name, tuple(points), _stretches(graph, points), graph.persistent_B + outside_B)


def plan_curve(record: PlanRecord) -> MemoryCurve:
    """The curve of a plan."""
    return memory_curve(record.graph, record.schedule, "the plan, predicted", record.outside_B)


def keep_all_curve(record: PlanRecord) -> MemoryCurve:
    """The curve of the same network when everything is kept until its last use."""
    return memory_curve(record.graph, keep_all_schedule(record.graph), "keep all, predicted", record.outside_B)


def _stretches(graph: Graph, points: list[Point]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for index, segment in enumerate(graph.segments):
        mine = [p for p in points if p.segment == index]
        if mine:
            found.append(Stretch(segment.name, min(p.start_s for p in mine), max(p.stop_s for p in mine)))
    return tuple(found)
