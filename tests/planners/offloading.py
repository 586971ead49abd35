"""Naive schedules that offload values, from schedules that do not; and machines whose links have a given rate.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import itertools
import random

from lowtide.ir.graph import Graph
from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Run, Schedule, Send, Step


def linked(to_Bps: float, from_Bps: float | None = None, latency_s: float = 0.0) -> Machine:
    """A machine with a link in each direction."""
    back_Bps = to_Bps if from_Bps is None else from_Bps
    return Machine(
        "linked",
        links=(
            Link("device", "host", "to_host", to_Bps, latency_s),
            Link("host", "device", "from_host", back_Bps, latency_s),
        ),
    )


def offloaded(graph: Graph, schedule: Schedule, share: float = 1.0, seed: int = 0, apart: int = 2) -> Schedule:
    """Sends what is not needed for `apart` runs or more, drops it, and fetches it right before the next need.

    Arguments:
        share: of such gaps, drawn by `seed`.
    """
    dice = random.Random(seed)
    steps = schedule.steps
    uses = _uses(graph, steps)
    leave: dict[int, list[int]] = {}  # step -> values that go behind it
    back: dict[int, list[int]] = {}  # step -> values that come before it
    for value, at in uses.items():
        size_B, persistent = graph.values[value].size_B, graph.values[value].persistent
        for a, b in itertools.pairwise(at):
            runs = sum(isinstance(s, Run) for s in steps[a + 1 : b])
            gone = any(s == Drop(value) for s in steps[a + 1 : b])
            free = size_B and not persistent and not gone and isinstance(steps[b], Run)
            if free and not _is_held(graph, steps, value, b) and runs >= apart and dice.random() < share:
                leave.setdefault(a, []).append(value)
                back.setdefault(b, []).append(value)
    made: list[Step] = []
    on_host: set[int] = set()
    last = {v: b for b, values in back.items() for v in values}
    for i, step in enumerate(steps):
        for v in back.get(i, ()):
            made.append(Fetch(v, HOST))
            if max(last[v], i) == i and not any(v in values for b, values in back.items() if b > i):
                made.append(Drop(v, HOST))
        made.append(step)
        for v in leave.get(i, ()):
            if v not in on_host:
                made.append(Send(v, HOST))
                on_host.add(v)
            made.append(Drop(v))
    return Schedule(tuple(made))


def _uses(graph: Graph, steps: tuple[Step, ...]) -> dict[int, list[int]]:
    """Per value the steps that bring or read it while it is there."""
    uses: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        if isinstance(step, Run):
            recipe = graph.recipes[step.recipe]
            for v in (*recipe.read_values, *step.keep):
                uses.setdefault(v, []).append(i)
        elif isinstance(step, Boundary):
            for value in graph.values:
                if value.arrives == step.segment or value.leaves == step.segment - 1:
                    uses.setdefault(value.id, []).append(i)
    return uses


def _is_held(graph: Graph, steps: tuple[Step, ...], value: int, index: int) -> bool:
    """Whether the caller holds a value at a step."""
    segment = sum(isinstance(s, Boundary) for s in steps[:index]) - 1
    leaves = graph.values[value].leaves
    return leaves is not None and leaves < segment
