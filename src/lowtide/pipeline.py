"""capture -> profile -> plan -> place -> run, on one page.

Each stage is a function of frozen values; this file composes them and decides nothing that a stage could. What needs
no torch of it, from the plan to its record, is `record.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lowtide
from lowtide.device.fingerprint import device_memory_B, fingerprint
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Covers, Environment, PlanRecord
from lowtide.planners.base import Watch
from lowtide.profile.cache import ProfileCache
from lowtide.profile.machines import load_machine
from lowtide.profile.measure import profile_graph
from lowtide.profile.roofline import predict_graph
from lowtide.record import Ground, PlanOptions, Start, budget_in_B, make_record
from lowtide.units import Budget

SHAPE_LIMIT_s = 2.0  # what people get who do not say otherwise


def measure(
    graph: Graph,
    held: Sequence[Any],
    machine: str | None,
    cache: ProfileCache | None,
    like: Graph | None = None,
    *,
    scaled: bool = False,
) -> Graph:
    """Seconds and allocations of every recipe: measured here, or predicted for `machine`.

    Arguments:
        like: a measured graph of the same structure, from which seconds may be scaled.
        scaled: whether seconds in the cache that were scaled will do.
    """
    if machine is not None:
        return predict_graph(graph, load_machine(machine))
    return profile_graph(graph, held=held, cache=cache, like=like, scaled=scaled).graph


def plan_graph(
    graph: Graph,
    options: PlanOptions,
    *,
    ground: Ground,
    device: str,
    covers: Covers,
    agreed_B: int | None = None,
    at_least_B: int = 0,
    watch: Watch | None = None,
    start: Start | None = None,
) -> PlanRecord:
    """Plans a graph that was profiled here, or predicted for another machine; see `make_record`.

    Arguments:
        device: torch device type that the budget is about.

    Raises:
        InfeasibleBudget: if no plan fits; nothing has been run.
    """
    return make_record(
        graph,
        options,
        ground=ground,
        covers=covers,
        environment=environment(device),
        device_B=lambda: device_memory_B(device),
        agreed_B=agreed_B,
        at_least_B=at_least_B,
        watch=watch,
        start=start,
    )


def resolve_budget(budget: Budget, plain_B: Callable[[], int], device: str) -> int:
    """A budget in bytes, once it is known what the plain step needs."""
    return budget_in_B(budget, plain_B, lambda: device_memory_B(device))


def environment(device: str) -> Environment:
    """What a plan's measurements depend on, here and now."""
    facts = fingerprint(device)
    return Environment(torch=facts.torch, device=facts.device, threads=facts.threads, lowtide=lowtide.__version__)
