"""The two clocks of a step on a GPU: the processor issues its runs, the device does them. Units: `_s` seconds."""

from __future__ import annotations

import msgspec

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Boundary, Run, Schedule
from lowtide.units import format_s


class SegmentSeconds(msgspec.Struct, frozen=True):
    """What one segment's runs take.

    Arguments:
        name: of the segment.
        device_s: of the device, in sum.
        issue_s: of the processor, to issue them, in sum.
    """

    name: str
    device_s: float
    issue_s: float

    @property
    def time_s(self) -> float:
        """What the segment takes: the slower of the two, since the device does one run while the next is issued."""
        return max(self.device_s, self.issue_s)


def segment_seconds(graph: Graph, schedule: Schedule) -> tuple[SegmentSeconds, ...]:
    """The seconds of every segment of a schedule, in order; nothing where the runs need no issuing. O(steps)."""
    if not any(r.issue_s for r in graph.recipes):
        return ()
    found = [[0.0, 0.0] for _ in graph.segments]
    segment = 0
    for step in schedule.steps:
        if isinstance(step, Boundary):
            segment = step.segment
        elif isinstance(step, Run):
            found[segment][0] += graph.recipes[step.recipe].time_s
            found[segment][1] += graph.recipes[step.recipe].issue_s
    return tuple(SegmentSeconds(s.name, *times) for s, times in zip(graph.segments, found, strict=True))


def issue_text(graph: Graph, schedule: Schedule) -> str:
    """The two sums of a step, and its seconds by the slower one of each segment; empty on CPU."""
    parts = segment_seconds(graph, schedule)
    if not parts:
        return ""
    bound = [p.name for p in parts if p.issue_s > p.device_s]
    which = f"; bound by issuing: {', '.join(bound)}" if bound else ""
    return (
        f"{format_s(sum(p.time_s for p in parts))} a step: {format_s(sum(p.device_s for p in parts))} on the device, "
        f"{format_s(sum(p.issue_s for p in parts))} to issue it{which}"
    )
