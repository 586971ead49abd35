"""From the calls of one step to its plan: measured, planned inside what the wall leaves, or fitted to a saved plan.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from lowtide.errors import PlanMismatch
from lowtide.frontends.covers import covers_of
from lowtide.frontends.discovery import Call, bundle_of, outside_B
from lowtide.frontends.enclosure import Enclosure
from lowtide.frontends.knowledge import Knowledge, Request
from lowtide.ir.graph import Graph
from lowtide.ir.layout import Obstacle
from lowtide.ir.plan import Covers, PlanRecord
from lowtide.pipeline import environment
from lowtide.planners.base import Watch
from lowtide.profile.cache import ProfileCache
from lowtide.record import Ground, PlanOptions, place_around
from lowtide.units import format_B


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """The graphs of one step, measured.

    Arguments:
        calls: in order.
        graph: the graph, or the union of all.
        device: torch device type that the budget is about.
        outside_B: bytes of the model that no graph is given.
    """

    calls: Sequence[Call]
    graph: Graph
    device: str
    outside_B: int

    @property
    def trains(self) -> bool:
        """Whether there is a backward."""
        return any(c.specialised.whole is not None or len(c.specialised.graph.segments) > 1 for c in self.calls)

    @property
    def updates(self) -> bool:
        """Whether the optimizer's updates are in it, or what it takes for them to come in another call."""
        return any(v.replaces is not None for v in self.graph.values)


def measure_step(
    calls: Sequence[Call],
    persistent: Callable[[], Iterable[torch.Tensor]],
    options: PlanOptions,
    cache: ProfileCache,
    knowledge: Knowledge,
) -> MeasuredStep:
    """Measures every graph of a step, or predicts it for a machine that is not here.

    Arguments:
        persistent: gives the tensors that live through the step whether or not a graph reads them.
        knowledge: of other shapes.
    """
    graphs = [knowledge.measure(c.specialised.graph, c.specialised.held, options, cache) for c in calls]
    return step_of(calls, graphs, persistent)


def step_of(
    calls: Sequence[Call], graphs: Sequence[Graph], persistent: Callable[[], Iterable[torch.Tensor]]
) -> MeasuredStep:
    """A step from its calls and, per call, its graph with times and traces, wherever those came from.

    Arguments:
        persistent: as for `measure_step`.
    """
    device = _device_of(calls)
    graph = bundle_of(calls, graphs).graph if len(calls) > 1 else graphs[0]
    return MeasuredStep(calls, graph, device, outside_B(persistent(), calls, device))


def plan_step(
    step: MeasuredStep,
    options: PlanOptions,
    enclosure: Enclosure,
    obstacles: tuple[Obstacle, ...] = (),
    watch: Watch | None = None,
    knowledge: Knowledge | None = None,
) -> PlanRecord:
    """Plans a step inside the budget, and inside what the wall leaves where there is one.

    Arguments:
        obstacles: what earlier steps left in the arena.
        knowledge: of this step's plan, or of another shape's; None to plan whatever is known.

    Raises:
        InfeasibleBudget: if no plan fits; nothing has been run.
    """
    ground = ground_of(step, options, enclosure, obstacles)
    request = Request(
        graph=step.graph,
        options=options,
        ground=ground,
        agreed_B=enclosure.agreed_B(step.graph),
        at_least_B=enclosure.budget_B,
        device=step.device,
        covers=covers_within(ground, step, enclosure),
    )
    record = request.plan(watch) if knowledge is None else knowledge.plan(request, watch)
    enclosure.agree(record)
    return record if options.machine is not None else enclosure.said(record, step.device)


def ground_of(
    step: MeasuredStep, options: PlanOptions, enclosure: Enclosure, obstacles: tuple[Obstacle, ...] = ()
) -> Ground:
    """What plans of a step have to leave room for; they get addresses where the step runs here inside a wall.

    Arguments:
        obstacles: what earlier steps left in the arena.
    """
    if options.machine is None and enclosure.encloses(step.device):
        return enclosure.ground(step.graph, step.outside_B, obstacles)
    return Ground(outside_B=step.outside_B + enclosure.state_B)


def covers_within(ground: Ground, step: MeasuredStep, enclosure: Enclosure) -> Covers:
    """What the budget of such plans counts, and what it could not know."""
    scope = enclosure.scope if ground.enforced else "none"
    return covers_of(step.trains, enclosure.needs, len(step.calls), scope, updates=step.updates)


def fit_plan(record: PlanRecord, step: MeasuredStep, enclosure: Enclosure) -> PlanRecord:
    """Fits a plan made elsewhere to this session: without addresses where nothing is enforced, with them where it is.

    Raises:
        PlanMismatch: if its allocations need more than its budget leaves here.
    """
    if not enclosure.encloses(step.device):
        return replace(record, layout=None, reserve_B=0, budget_kind="accounted") if record.layout else record
    ground = enclosure.ground(step.graph, step.outside_B)
    fitted = replace(
        record,
        budget_B=max(record.budget_B, enclosure.budget_B),
        outside_B=ground.outside_B,
        peak_B=record.peak_B - record.outside_B + ground.outside_B,
        reserve_B=ground.reserve_B,
        optimizer_B=ground.optimizer_B,
        budget_kind="enforced",
        covers=covers_of(step.trains, enclosure.needs, len(step.calls), enclosure.scope, updates=step.updates),
    )
    room_B = ground.room_B(record.graph, fitted.budget_B, enclosure.budget_B)
    if record.layout is not None and record.layout.height_B <= room_B and record.optimizer_B == ground.optimizer_B:
        return fitted
    placed = place_around(fitted, (), room_B)
    if placed is None:
        raise PlanMismatch(
            f"the saved plan does not fit into {format_B(fitted.budget_B)} here: parameters, inputs, optimizer state "
            f"and reserve take {format_B(fitted.fixed_B)}, and its allocations do not fit into the rest. Plan again "
            "with lowtide.plan and the same optimizer and scope, or raise the budget."
        )
    return placed


def check_plan_is_for(record: PlanRecord, key: str, device: str) -> None:
    """Refuses a saved plan of another program, other shapes, or another environment.

    Raises:
        PlanMismatch: names what differs, and the remedy.
    """
    if record.graph.key != key:
        raise PlanMismatch(
            f"the saved plan was made for another program or other shapes (graph {record.graph.key}, "
            f"this is {key}). Plan again with lowtide.plan on this model and these inputs."
        )
    here, there = environment(device), record.environment
    for fact in ("torch", "device", "threads"):
        if getattr(here, fact) != getattr(there, fact):
            raise PlanMismatch(
                f"the saved plan was measured with {fact} {getattr(there, fact)!r}, here it is "
                f"{getattr(here, fact)!r}. Plan again here, or restore that environment."
            )


def _device_of(calls: Sequence[Call]) -> str:
    """The device type that holds most of what the calls are given."""
    count: dict[str, int] = {}
    for call in calls:
        for value in call.specialised.graph.values:
            if value.geometry is not None:
                count[value.geometry.device] = count.get(value.geometry.device, 0) + value.size_B
    return max(count, key=lambda d: count[d], default="cpu")
