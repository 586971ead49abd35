"""From the calls of one step to its plan: measured, planned inside what the arena leaves, or fitted to a saved plan.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from lowtide.device.fingerprint import device_memory_B
from lowtide.distributed.agreement import Agreement
from lowtide.errors import PlanMismatch
from lowtide.ir.fidelity import Fidelity, all_together
from lowtide.ir.graph import Graph
from lowtide.ir.layout import LiveBlock
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Covers, PlanRecord
from lowtide.pipeline import environment, request_here
from lowtide.plan_cache.lookup import PlanLookup
from lowtide.planners.base import Progress, Watch
from lowtide.profile.cache import ProfileCache
from lowtide.progress import tell_part, told
from lowtide.record import Constraints, PlanOptions, PlanRequest, carried_over, make_record, place_around, plain_B
from lowtide.session.budget_scope import BudgetScope
from lowtide.session.covers import covers_of
from lowtide.session.graph_discovery import Call, bundle_of, outside_B
from lowtide.units import Budget, format_B, format_percent


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
    def fidelity(self) -> Fidelity:
        """The evidence that the captured graphs give plain PyTorch's bits, or the doubts."""
        count, tried = len(self.calls), _tried(self.graph)
        facts = [
            "one graph holds the whole call" if count == 1 else f"{count} graphs hold the call, code between them runs"
        ]
        if tried:
            facts.append(f"{tried} other implementations gave the same bits as the operators they replace")
        return all_together((c.specialised.captured.fidelity for c in self.calls), facts)

    @property
    def updates(self) -> bool:
        """Whether the optimizer's updates are in the graph, or the accumulation for those of a later call."""
        return any(v.replaces is not None for v in self.graph.values)


def measure_step(
    calls: Sequence[Call],
    persistent: Callable[[], Iterable[torch.Tensor]],
    options: PlanOptions,
    cache: ProfileCache,
    lookup: PlanLookup,
) -> MeasuredStep:
    """Measures every graph of a step, or predicts it for a machine that is not here.

    Arguments:
        persistent: gives the tensors that live through the step whether or not a graph reads them.
        lookup: of other shapes.
    """
    graphs = [lookup.measure(c.specialised.graph, c.specialised.held, options, cache) for c in calls]
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
    budget_scope: BudgetScope,
    live_blocks: tuple[LiveBlock, ...] = (),
    watch: Watch | None = None,
    lookup: PlanLookup | None = None,
    agreement: Agreement | None = None,
) -> PlanRecord:
    """Plans a step inside the budget, and inside what the arena leaves where there is one.

    Arguments:
        live_blocks: what earlier steps left in the arena.
        lookup: of this step's plan, or of another shape's; None to plan whatever is known.
        agreement: with the other ranks that train the model; None where there are none.

    Raises:
        InfeasibleBudget: if no plan fits; nothing has been run.
        RanksError: if the ranks cannot have one plan.
    """
    constraints = constraints_of(step, options, budget_scope, live_blocks)
    request = request_here(
        step.graph,
        options,
        constraints=constraints,
        agreed_B=budget_scope.agreed_B(step.graph),
        at_least_B=budget_scope.budget_B,
        device=step.device,
        covers=covers_within(constraints, step, budget_scope),
    )
    with told():
        shown = _shown(options, watch)

        def make(request: PlanRequest) -> PlanRecord:
            return make_record(request, watch=shown) if lookup is None else lookup.plan(request, shown)

        record = make(request) if agreement is None else agreement.plan(request, make)
    record = replace(record, fidelity=step.fidelity)
    budget_scope.agree(record)
    return record if options.machine is not None else budget_scope.said(record, step.device)


def _shown(options: PlanOptions, watch: Watch | None) -> Watch:
    """Tells how far planning is, and whoever else wants to know."""

    def both(progress: Progress) -> None:
        told_so_far = f"planning: {progress.stage}"
        if progress.plain_s > 0 and progress.time_s is not None:
            told_so_far += f", overhead {format_percent(progress.time_s / progress.plain_s - 1)}"
        tell_part(told_so_far, min(1.0, progress.work / options.work), progress.elapsed_s)
        if watch is not None:
            watch(progress)

    return both


def constraints_of(
    step: MeasuredStep, options: PlanOptions, budget_scope: BudgetScope, live_blocks: tuple[LiveBlock, ...] = ()
) -> Constraints:
    """The constraints of a step's plans; they get addresses where the step runs here inside an arena.

    Arguments:
        live_blocks: what earlier steps left in the arena.
    """
    if options.machine is None:
        return _constraints_here(step, budget_scope, live_blocks)
    return Constraints(outside_B=step.outside_B + budget_scope.apart_B, state_B=budget_scope.state_B)


def _constraints_here(
    step: MeasuredStep, budget_scope: BudgetScope, live_blocks: tuple[LiveBlock, ...] = ()
) -> Constraints:
    if budget_scope.encloses(step.device):
        return budget_scope.constraints(step.graph, step.outside_B, live_blocks)
    libraries_B = budget_scope.libraries_B
    return Constraints(
        outside_B=step.outside_B + budget_scope.apart_B + libraries_B,
        state_B=budget_scope.state_B,
        libraries_B=libraries_B,
    )


def covers_within(constraints: Constraints, step: MeasuredStep, budget_scope: BudgetScope) -> Covers:
    """The lists of what the budget of such plans counts, and of what is outside."""
    scope = budget_scope.scope if constraints.enforced else "none"
    return covers_of(step.trains, budget_scope.needs, len(step.calls), scope, updates=step.updates)


def fit_plan(
    record: PlanRecord, step: MeasuredStep, budget_scope: BudgetScope, budget: Budget | None = None
) -> PlanRecord:
    """Carries the decisions of a plan made elsewhere over to a step captured here, with addresses where it is enclosed.

    Arguments:
        record: of the same program; nothing of its graph is run.
        budget: instead of the plan's own.

    Raises:
        PlanMismatch: if its decisions are not legal for this step, or its allocations need more than its budget leaves.
    """
    constraints = _constraints_here(step, budget_scope)
    budget_B = record.budget_B
    if budget is not None:
        budget_B = budget.in_B(lambda: plain_B(step.graph, constraints), lambda: device_memory_B(step.device))
    budget_B = max(budget_B, budget_scope.budget_B)
    fitted = carried_over(
        record,
        step.graph,
        constraints=constraints,
        budget_B=budget_B,
        covers=covers_within(constraints, step, budget_scope),
        environment=environment(step.device),
    )
    fitted = replace(fitted, fidelity=step.fidelity)
    free_B = constraints.free_B(fitted.graph, budget_B, budget_scope.budget_B)
    placed: PlanRecord | None = fitted
    if constraints.enforced and (fitted.layout is None or fitted.layout.height_B > free_B):
        placed = place_around(fitted, (), free_B)
    if placed is None or placed.reserved_B > budget_B:
        raise PlanMismatch(
            f"the saved plan does not fit into {format_B(budget_B)} here: parameters, inputs, optimizer state "
            f"and reserve take {format_B(fitted.fixed_B)}, and its allocations do not fit into the rest. Plan again "
            "with lowtide.plan and the same optimizer and scope, or raise the budget."
        )
    return budget_scope.said(placed, step.device)


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
    if here.arithmetic != there.arithmetic:
        raise PlanMismatch(
            "the saved plan was made where numbers are rounded otherwise "
            f"({there.arithmetic or 'it does not say how'}), "
            f"and what was bit-equal there may differ here ({here.arithmetic}). Plan again here, or restore that "
            "processor and those settings."
        )


def _tried(graph: Graph) -> int:
    """The number of implementations next to the program's that claim to be exact: each was tried here."""
    program = set(graph.program)
    grouped = {r for g in graph.groups for o in g.options for r in o.recipes}
    options = sum(o.numerics is Numerics.EXACT for g in graph.groups for o in g.options[1:])
    return options + sum(r.id not in program and r.id not in grouped and bool(r.consumes) for r in graph.recipes)


def _device_of(calls: Sequence[Call]) -> str:
    """The device type that holds most of what the calls are given."""
    count: dict[str, int] = {}
    for call in calls:
        for value in call.specialised.graph.values:
            if value.geometry is not None:
                count[value.geometry.device] = count.get(value.geometry.device, 0) + value.size_B
    return max(count, key=lambda d: count[d], default="cpu")
