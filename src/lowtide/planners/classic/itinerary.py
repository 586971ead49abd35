"""Where the values of a schedule without copies are used: what a policy that offloads them goes by.

Places are indices of the schedule's steps.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property

from lowtide.ir.graph import Graph, Role
from lowtide.ir.schedule import DEVICE, HOST_ENGINE, Boundary, Drop, Run, Schedule
from lowtide.planners.chain.forward import forwards
from lowtide.planners.reductions.stage import ENTRY
from lowtide.planners.reductions.stages import StageProgram


@dataclass(frozen=True)
class Itinerary:
    """A schedule without copies, and who reads what where.

    Arguments:
        schedule: legal for the graph, with runs, drops and boundaries alone.
        turn: where the backward begins.
    """

    graph: Graph
    schedule: Schedule
    turn: int

    @cached_property
    def needs(self) -> dict[int, list[int]]:
        """Per value the places where a run reads it, in order."""
        found: dict[int, list[int]] = {}
        for place, step in enumerate(self.schedule.steps):
            if isinstance(step, Run):
                for v in self.graph.recipes[step.recipe].read_values:
                    found.setdefault(v, []).append(place)
        return found

    def next_need(self, value: int, place: int) -> int | None:
        """The first place from `place` on where a run reads a value; None where none does."""
        places = self.needs.get(value, [])
        k = bisect.bisect_left(places, place)
        return places[k] if k < len(places) else None

    @cached_property
    def movable(self) -> frozenset[int]:
        """Values that may be offloaded and fetched: nobody but the plan's own runs sees them."""
        return frozenset(
            v.id
            for v in self.graph.values
            if v.size_B
            and not v.persistent
            and v.leaves is None
            and v.readable_through is None
            and v.role is not Role.GENERATOR
            and v.id not in self.graph.handed
        )

    @cached_property
    def crossing(self) -> dict[int, tuple[int, int]]:
        """Movable values that the forward keeps for the backward: where they were last touched, and first needed."""
        touched: dict[int, int] = {}
        for place, step in enumerate(self.schedule.steps[: self.turn]):
            match step:
                case Run(recipe=recipe, keep=keep):
                    for takeover in self.graph.recipes[recipe].consumes:
                        touched.pop(takeover.value, None)
                    touched.update({v: place for v in self.graph.recipes[recipe].read_values if v in touched})
                    touched.update(dict.fromkeys(keep, place))
                case Drop(value=value):
                    touched.pop(value, None)
                case Boundary(segment=segment):
                    arriving = (v.id for v in self.graph.arriving if v.arrives == segment and not v.persistent)
                    touched.update(dict.fromkeys(arriving, place))
        found = {}
        for value, rest in touched.items():
            back = self.next_need(value, self.turn)
            if back is not None and value in self.movable:
                found[value] = (rest, back)
        return found

    def run_before(self, place: int) -> int:
        """The place of the run before another; 0 where there is none."""
        k = bisect.bisect_left(self._runs, place)
        return self._runs[k - 1] if k else 0

    @cached_property
    def _runs(self) -> list[int]:
        return [place for place, step in enumerate(self.schedule.steps) if isinstance(step, Run)]


def itinerary(program: StageProgram, schedule: Schedule) -> Itinerary:
    """Follows a schedule without copies.

    Arguments:
        program: of one part; its first forward half says where the backward begins.
        schedule: of its graph.

    O(steps).
    """
    halves = forwards(program)
    turn = halves[0].turn if halves else len(program.stages)
    begins = {s.segment for s in program.stages[turn:] if s.recipe == ENTRY}
    behind = {s.recipe for s in program.stages[turn:] if s.recipe >= 0}
    place = len(schedule.steps)
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Run) and step.recipe in behind:
            place = index
            break
        if isinstance(step, Boundary) and step.segment in begins:
            place = index
            break
    return Itinerary(program.graph, schedule, place)


def refuses_offload(graph: Graph) -> str | None:
    """Says why static policies cannot offload a graph's values, or None if they can."""
    if len({s.part for s in graph.segments}) > 1:
        return "it is a bundle of several parts, and static policies know one forward and one backward"
    if any(graph.recipes[r].engine == HOST_ENGINE for r in graph.program):
        return "its program computes on the host, and static policies only offload values there"
    if any(v.persistent and v.memory != DEVICE for v in graph.values):
        return "some values are host-resident, and static policies offload activations alone"
    return None
