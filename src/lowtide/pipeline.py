"""capture -> profile -> plan -> run, on one page.

Each stage is a function of frozen values; this file composes them and decides nothing that a stage could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lowtide
from lowtide.device.fingerprint import device_memory_B, fingerprint
from lowtide.errors import InfeasibleBudget
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.plan import DEFAULT_WORK, Covers, Environment, Outcome, PlanRecord, Problem
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner, Progress
from lowtide.planners.keep_all import KeepAll
from lowtide.planners.portfolio import Portfolio
from lowtide.profile.cache import ProfileCache
from lowtide.profile.machines import load_machine
from lowtide.profile.measure import profile_graph
from lowtide.profile.roofline import predict_graph
from lowtide.units import Budget, format_B

Watch = Callable[[Progress], None]
_UNLIMITED_B = 2**60


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How to plan.

    Arguments:
        budget: what the device may use.
        planner: what searches.
        seed, work, time_limit_s: see `Problem`.
        machine: plan for a machine that is not here, by name or file, predicting instead of measuring.
    """

    budget: Budget
    planner: AbstractPlanner = field(default_factory=Portfolio)
    seed: int = 0
    work: int = DEFAULT_WORK
    time_limit_s: float | None = None
    machine: str | None = None


def measure(graph: Graph, held: Sequence[Any], machine: str | None, cache: ProfileCache | None) -> Graph:
    """Seconds and allocations of every recipe: measured here, or predicted for `machine`."""
    if machine is not None:
        return predict_graph(graph, load_machine(machine))
    return profile_graph(graph, held=held, cache=cache).graph


def plan_graph(
    graph: Graph, options: PlanOptions, *, outside_B: int, device: str, covers: Covers, watch: Watch | None = None
) -> PlanRecord:
    """Plans a profiled graph and proves the plan legal.

    Arguments:
        outside_B: persistent bytes that belong to no value of the graph.
        device: torch device type that the budget is about.

    Raises:
        InfeasibleBudget: if no plan fits; nothing has been run.
    """
    everything = KeepAll().solve(Problem(graph, budget_B=_UNLIMITED_B)).schedule
    assert everything is not None, "without a budget, keeping everything always fits"
    plain = simulate(graph, everything)
    budget_B = resolve_budget(options.budget, plain.peak_B + outside_B, device)
    problem = Problem(
        graph,
        budget_B=budget_B - outside_B,
        seed=options.seed,
        work=options.work,
        time_limit_s=options.time_limit_s,
    )
    outcome = options.planner.solve(problem, watch)
    if outcome.schedule is None:
        raise _infeasible(graph, outcome, budget_B, outside_B)
    check(graph, outcome.schedule, problem.budget_B)
    timeline = simulate(graph, outcome.schedule)
    return PlanRecord(
        graph=graph,
        schedule=outcome.schedule,
        outcome=outcome,
        budget_B=budget_B,
        peak_B=timeline.peak_B + outside_B,
        time_s=timeline.time_s,
        keep_all_peak_B=plain.peak_B + outside_B,
        keep_all_time_s=plain.time_s,
        outside_B=outside_B,
        covers=covers,
        environment=environment(device),
    )


def resolve_budget(budget: Budget, plain_B: int, device: str) -> int:
    """A budget in bytes, once it is known what the plain step needs."""
    if budget.size_B is not None:
        return budget.size_B
    if budget.of_plain is not None:
        return int(budget.of_plain * plain_B)
    return int((budget.of_device or 0.0) * device_memory_B(device))


def environment(device: str) -> Environment:
    """What a plan's measurements depend on, here and now."""
    facts = fingerprint(device)
    return Environment(torch=facts.torch, device=facts.device, threads=facts.threads, lowtide=lowtide.__version__)


def _whereabouts(recipe: Recipe) -> str:
    """An operator with its place in the user's source, or in the model where no line of the user's led to it."""
    origin = recipe.origin
    place = origin.source or f"module {origin.module}" if origin.source or origin.module else "an unknown line"
    return f"{recipe.op} at {place}" + (f" ({origin.text})" if origin.text else "")


def _infeasible(graph: Graph, outcome: Outcome, budget_B: int, outside_B: int) -> InfeasibleBudget:
    """The error that says what would fit."""
    floor_B = outcome.floor_B + outside_B
    smallest_B = None if outcome.smallest_B is None else outcome.smallest_B + outside_B
    setters = [graph.recipes[r] for r in outcome.floor_recipes]
    names = tuple(_whereabouts(r) for r in setters[:3])
    lines = [
        f"a budget of {format_B(budget_B)} ({budget_B:,} B) is too small for this step; nothing has been changed.",
        f"Proved floor: {format_B(floor_B)} ({floor_B:,} B), of which parameters, buffers and inputs are "
        f"{format_B(graph.persistent_B + outside_B)}.",
    ]
    if smallest_B is not None:
        lines.append(f"Smallest budget for which a plan was found: {format_B(smallest_B)}; use budget={smallest_B}.")
    if names:
        lines.append("The floor is set by: " + "; ".join(names) + ".")
    if smallest_B is None:
        lines.append("Raise the budget above the floor, or lower the batch size or the sequence length.")
    return InfeasibleBudget(
        "\n".join(lines), budget_B=budget_B, floor_B=floor_B, smallest_B=smallest_B, operators=names
    )
