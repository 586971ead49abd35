"""Schedules that move, made by hand from schedules that do not."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

import lowtide
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.layout import SMALL_B
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.ir.simulate import simulate
from lowtide.placers.addresses import lay_out
from lowtide.planners.offload.waits import with_waits


def saved_values(graph: Graph, schedule: Schedule, least_B: int = SMALL_B) -> list[int]:
    """Values that a run of the forward makes and one of the backward reads, and that nobody else holds."""
    made: set[int] = set()
    found: dict[int, None] = {}
    segment = 0
    for step in schedule.steps:
        if isinstance(step, Boundary):
            segment = step.segment
        elif isinstance(step, Run):
            reads = graph.recipes[step.recipe].read_values
            found.update((v, None) for v in reads if segment and v in made)
            made.update(step.keep if not segment else ())
    values = graph.values
    return [v for v in found if values[v].size_B >= least_B and values[v].leaves is None and values[v].geometry]


def away(graph: Graph, schedule: Schedule, values: Collection[int], ahead: int = 1) -> Schedule:
    """The schedule in which values wait on the host between forward and backward.

    Arguments:
        values: of `saved_values`.
        ahead: how many steps before its first reader a value is fetched.
    """
    steps = list(schedule.steps)
    border = next(i for i, s in enumerate(steps) if isinstance(s, Boundary) and s.segment)
    last, first = dict[int, int](), dict[int, int]()
    for index, step in enumerate(steps):
        if isinstance(step, Run):
            reads = graph.recipes[step.recipe].read_values
            for v in (*step.keep, *reads):
                if v in values and index < border:
                    last[v] = index
                if v in values and index > border and v in reads:
                    first.setdefault(v, index)
    found: list[Step] = []
    gone: set[int] = set()
    for index, step in enumerate(steps):
        for v in values:
            if max(border + 1, first[v] - ahead) == index:
                found.append(Fetch(v, HOST))
        found.append(step)
        for v in values:
            if last[v] == index:
                found += [Send(v, HOST), Drop(v)]
        ended = [t.value for t in graph.recipes[step.recipe].consumes] if isinstance(step, Run) else []
        ended += [step.value] if isinstance(step, Drop) else []
        for v in ended:
            if v in values and index > border and v not in gone:
                gone.add(v)
                found.append(Drop(v, HOST))
    return with_waits(graph, found)


def moved(record: PlanRecord, schedule: Schedule, host_budget_B: int, link_Bps: float | None = None) -> PlanRecord:
    """A plan with another schedule, proved legal, at addresses of its own."""
    check(record.graph, schedule, host_budget_B=host_budget_B)
    layout = None if record.layout is None else lay_out(record.graph, schedule, after_B=record.optimizer_B)
    check(record.graph, schedule, layout=layout)
    timeline = simulate(record.graph, schedule)
    peak_B = timeline.peak_B + record.outside_B
    return replace(
        record, schedule=schedule, layout=layout, peak_B=peak_B, host_budget_B=host_budget_B, link_Bps=link_Bps
    )


def plan_of(model: object) -> PlanRecord:
    """The plan of a fitted model that has taken a step."""
    handle = model.lowtide  # type: ignore[attr-defined]
    assert isinstance(handle.plan, lowtide.Plan)
    return handle.plan.record
