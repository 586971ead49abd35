"""Which steps of a schedule recompute."""

from __future__ import annotations

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Run, Schedule


def recompute_steps(graph: Graph, schedule: Schedule) -> frozenset[int]:
    """Finds the runs that make only what was made before: the same recipe, a replay, in place or not. O(steps)."""
    found: set[int] = set()
    made: set[int] = set()
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Run):
            outputs = graph.recipes[step.recipe].outputs
            if outputs and made.issuperset(outputs):
                found.add(index)
            made.update(outputs)
    return frozenset(found)
