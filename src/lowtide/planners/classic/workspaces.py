"""Convolutions' workspaces from what is left: each takes the fastest algorithm whose bytes are free where it runs.

L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018, arXiv
1801.04380: tensors come first, planned for the thriftiest algorithms, and workspaces get the rest. An algorithm is
chosen per operator and not per run of it: a schedule runs one option of a group.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.schedule import Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.ops.base import ALGORITHMS
from lowtide.planners.implementations.choice import choose

ALGORITHM_CLASS = "any recomputation; any offload; any algorithm per convolution"


def thriftiest(graph: Graph) -> Graph:
    """The graph whose program runs, of each convolution's algorithms, the one that allocates least. O(graph)."""
    choice = {}
    for g, candidates in _algorithms(graph):
        choice[g] = min(candidates, key=lambda k: (candidates[k].trace.peak_B, candidates[k].time_s, k))
    return choose(graph, choice)


def fastest_that_fit(graph: Graph, schedule: Schedule, budget_B: int) -> Schedule:
    """The schedule with faster algorithms where each of their runs has the bytes.

    Arguments:
        graph: with the algorithms as groups.
        schedule: within the budget; of any option of each group.

    O(steps * algorithms).
    """
    instants = simulate(graph, schedule).instants
    before_B: dict[int, int] = {}  # recipe -> most bytes there when it begins
    for step, instant in zip(schedule.steps, instants, strict=True):
        if isinstance(step, Run):
            before_B[step.recipe] = max(before_B.get(step.recipe, 0), instant.live_before_B)
    instead: dict[int, int] = {}
    for _, candidates in _algorithms(graph):
        ran = next((r.id for r in candidates.values() if r.id in before_B), None)
        if ran is not None:
            fit = [r for r in candidates.values() if r.id == ran or before_B[ran] + r.trace.peak_B <= budget_B]
            instead[ran] = min(fit, key=lambda r: (r.time_s, r.id != ran)).id
    steps = (
        replace(s, recipe=instead[s.recipe]) if isinstance(s, Run) and s.recipe in instead else s
        for s in schedule.steps
    )
    return Schedule(tuple(steps))


def has_algorithms(graph: Graph) -> bool:
    """Whether some operator has several algorithms to choose from. O(graph)."""
    return next(_algorithms(graph), None) is not None


def saved_s(graph: Graph) -> float:
    """Seconds that the fastest algorithms save over those that the program runs. O(graph)."""
    return sum(
        candidates[0].time_s - min(r.time_s for r in candidates.values()) for _, candidates in _algorithms(graph)
    )


def _algorithms(graph: Graph) -> Iterator[tuple[int, dict[int, Recipe]]]:
    """Groups of algorithms, and the options that are one recipe in the place of one recipe."""
    for g, group in enumerate(graph.groups):
        if group.kind != ALGORITHMS or len(group.options[0].recipes) != 1:
            continue
        own = graph.recipes[group.options[0].recipes[0]]
        candidates = {k: graph.recipes[o.recipes[0]] for k, o in enumerate(group.options) if len(o.recipes) == 1}
        alike = {k: r for k, r in candidates.items() if r.outputs == own.outputs and r.read_values == own.read_values}
        if len(alike) > 1:
            yield g, alike
