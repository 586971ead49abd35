"""`lowtide.fits`: does this training step fit on that card? Answered without the card, and without a step.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lowtide.api.captured_graph import captured_step
from lowtide.api.size_search import largest
from lowtide.arguments import call_arguments, function, index_of, shown
from lowtide.device.fingerprint import device_memory_B
from lowtide.errors import ArgumentError, BudgetError, InfeasibleBudget, LowtideError
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.likeness import structure
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK, PlanRecord, Problem
from lowtide.ir.simulate import simulate
from lowtide.pipeline import request_here
from lowtide.planners.base import Watch
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.smallest import smallest_budget
from lowtide.profile.foresight import Sample, foreseen_graph
from lowtide.profile.machines import load_machine, nearest_machine
from lowtide.profile.optimizer import optimizer_needs
from lowtide.record import Constraints, PlanOptions, make_record
from lowtide.results.plan import Plan
from lowtide.session.budget_scope import BudgetScope
from lowtide.session.covers import NO_OPTIMIZER, covers_of
from lowtide.session.inputs import Inputs, vary
from lowtide.session.member import check_model, check_optimizer, member_of
from lowtide.session.meta_models import StandIns, in_place_of, with_addresses
from lowtide.session.options import implementation_options
from lowtide.session.planning import MeasuredStep
from lowtide.session.session import Session
from lowtide.units import Budget, format_B, format_percent, parse_budget

GPU_RESERVE_B = 2**30
"""Of a GPU known by name: what the driver's context and the libraries' workspaces are granted, next to tensors."""
_GRANULE_B = 512  # GPU allocators round to it


@dataclass(frozen=True, repr=False)
class Fits:
    """Whether a training step fits on a device; true when it does. All of it is predicted, nothing was measured.

    Arguments:
        fits: with lowtide at the latest.
        verdict: in a few words.
        device: the card, or its bytes.
        memory_B: of the device; `reserve_B` of it are left to what is no tensor.
        plain_B: most bytes at once when everything is kept, as plain PyTorch does; without its allocator's holes.
        floor_B: proved: no plan of this step lives in fewer bytes.
        smallest_B: the smallest for which a plan was found; None where everything fits as it is, and none was sought.
        overhead: extra time of the plan that fits, as a fraction; 0 as it is; None where nothing fits.
        largest_batch: the largest batch that would fit; None where this one fits, or where that could not be found out.
        plan: the plan that fits; None where there is none.
        outside: what these figures do not count.
        note: what people should know about this answer; empty when there is nothing.
    """

    fits: bool
    verdict: str
    device: str
    memory_B: int
    reserve_B: int
    plain_B: int
    floor_B: int
    smallest_B: int | None
    overhead: float | None
    largest_batch: int | None
    plan: Plan | None
    outside: tuple[str, ...]
    note: str = ""

    def __bool__(self) -> bool:
        return self.fits

    def __repr__(self) -> str:
        return f"Fits({self.device}: {self.verdict})"

    def __str__(self) -> str:
        reserve = f", of which {format_B(self.reserve_B)} are left to what is no tensor" if self.reserve_B else ""
        smallest = "" if self.smallest_B is None else f"; a plan was found for {format_B(self.smallest_B)}"
        lines = [
            f"{self.device}: {self.verdict}",
            f"memory     {format_B(self.memory_B)}{reserve}",
            f"plain      {format_B(self.plain_B)} when everything is kept",
            f"floor      {format_B(self.floor_B)}, proved{smallest}",
            f"not counted: {'; '.join(self.outside)}",
            "predicted, not measured" + (f". {self.note}" if self.note else ""),
        ]
        return "\n".join(lines)


def fits(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str | int | torch.device,
    optimizer: torch.optim.Optimizer | None = None,
    reserve: int | str | None = None,
    vary_only: Sequence[str] = (),
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = DEFAULT_WORK,
    watch: Watch | None = None,
) -> Fits:
    """Says whether a training step fits on a device: as it is, with lowtide, or not.

    Nothing of the model runs, and neither the device nor the model's bytes need be here: a model on the meta device (or
    made under `FakeTensorMode`) is captured with stand-ins that have addresses and no memory. Operators are those that
    torch would choose on the CPU, unless the model lies on a GPU; their seconds follow the roofline model. An optimizer
    that was left the choice is taken to step as it does on a GPU, all parameters at once.

    Arguments:
        model: in the mode to ask about.
        args, kwargs: what it is called with; they may be on the meta device, too.
        device: a machine by name ("h100", "a100-40gb", "RTX 4090", or a machine file), bytes for tensors ("24GiB"),
            or "cpu" or "cuda" for the one that is here.
        optimizer: its state counts, and the temporaries of its step.
        reserve: bytes of the device that are left to what is no tensor; without it 1 GiB of a GPU known by name, and
            nothing where bytes are given.
        vary_only: which dimensions are the batch, `NAME:DIM` each, for the largest batch that would fit; without it
            the first one of every tensor argument.
        numerics, without: as for `fit`; that implementations are exact is taken on trust, since nothing runs.
        seed, work: see `Problem`.
        watch: told of planning's progress.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range.
        LowtideError: if there is no such device.
        BudgetError: if the bytes are malformed, or a share of something.
        CaptureError, OptimizerError: if nothing could be captured; if the optimizer is none.
    """
    function("watch", watch, "watch=print")
    check_model(model)
    args, kwargs = call_arguments(args, kwargs)
    vary_only = (vary_only,) if isinstance(vary_only, str) else vary_only
    if vary_only:
        vary(model, (args, kwargs), only=vary_only)
    card = _card(device, reserve)
    options = PlanOptions(
        budget=Budget(size_B=max(1, card.free_B)),
        seed=seed,
        work=work,
        machine=card.machine,
        **implementation_options(numerics, without),
    )
    stand_ins = StandIns()
    with with_addresses(model, stand_ins):
        inputs: Inputs = in_place_of((tuple(args), dict(kwargs or {})), stand_ins)
        return _Asking(model, card, options, optimizer, watch).answer(inputs, vary_only)


@dataclass(frozen=True)
class _Card:
    """A device that is asked about; `machine` names the one for which seconds are predicted."""

    name: str
    machine: str
    memory_B: int
    reserve_B: int

    @property
    def free_B(self) -> int:
        """For tensors."""
        return self.memory_B - self.reserve_B


class _Asking:
    """One model and one card."""

    def __init__(
        self,
        model: torch.nn.Module,
        card: _Card,
        options: PlanOptions,
        optimizer: torch.optim.Optimizer | None,
        watch: Watch | None,
    ) -> None:
        self.model, self.card, self.options, self.watch = model, card, options, watch
        self.needs = None
        if optimizer is not None:
            check_optimizer(optimizer)
            with contextlib.nullcontext() if card.machine == "cpu" else _stepped_as_on_a_gpu(optimizer):
                self.needs = optimizer_needs(optimizer, alignment_B=_GRANULE_B)
        self.session = Session(options, BudgetScope("none", [member_of(model, None)]), watch=watch, whole_model=True)

    def answer(self, inputs: Inputs, vary_only: Sequence[str]) -> Fits:
        step = self._step(inputs)
        record = self._plan(step, self.options)
        card, free_B = self.card, self.card.free_B
        plain_B, note, batch = self._plain_B(step), "", None
        if isinstance(record, PlanRecord):
            as_it_is = plain_B <= free_B
            verdict = f"fits as it is, {format_B(plain_B)} of {format_B(free_B)}"
            if not as_it_is:
                verdict = (
                    f"fits with lowtide, +{format_percent(record.overhead)} time: {format_B(record.peak_B)} of "
                    f"{format_B(free_B)}, where plain PyTorch needs {format_B(plain_B)}"
                )
            floor_B, smallest_B = record.floor_B, None if as_it_is else self._smallest_B(step, record)
        else:
            floor_B, smallest_B = record.floor_B, record.smallest_B
            batch, note = self._largest(step, inputs, vary_only)
            verdict = f"does not fit: at least {format_B(floor_B)} of {format_B(free_B)}"
            if smallest_B is not None:
                verdict += f", {format_B(smallest_B)} for the smallest plan"
            if batch is not None:
                verdict += f"; a batch of {batch} would fit" if batch else "; no batch would fit"
        found = record if isinstance(record, PlanRecord) else None
        return Fits(
            fits=found is not None,
            verdict=verdict,
            device=card.name,
            memory_B=card.memory_B,
            reserve_B=card.reserve_B,
            plain_B=plain_B,
            floor_B=floor_B,
            smallest_B=smallest_B,
            overhead=None if found is None else max(0.0, found.overhead),
            largest_batch=batch,
            plan=None if found is None else Plan(found),
            outside=self._outside(step),
            note=note,
        )

    def _step(self, inputs: Inputs) -> MeasuredStep:
        return captured_step(self.session, self.model, inputs, self.card.machine)

    def _constraints(self, step: MeasuredStep) -> Constraints:
        state_B = temporaries_B = 0
        if self.needs is not None and step.trains:
            state_B, temporaries_B = self.needs.state_B, self.needs.temporaries_B
        return Constraints(outside_B=step.outside_B + state_B, state_B=state_B, optimizer_B=temporaries_B)

    def _plan(self, step: MeasuredStep, options: PlanOptions) -> PlanRecord | InfeasibleBudget:
        """The plan, or why there is none. The floor knows the optimizer's step; a plan alone does not."""
        covers = covers_of(step.trains, self.needs, len(step.calls), "none")
        try:
            request = request_here(
                step.graph, options, constraints=self._constraints(step), device=step.device, covers=covers
            )
            record = make_record(request, watch=self.watch)
        except InfeasibleBudget as error:
            return error
        if record.floor_B <= self.card.free_B:
            return record
        return InfeasibleBudget(
            "the optimizer's step does not fit", budget_B=self.card.free_B, floor_B=record.floor_B, smallest_B=None
        )

    def _smallest_B(self, step: MeasuredStep, record: PlanRecord) -> int:
        """The smallest bytes for which some plan is found, the optimizer's step included."""
        found_B = smallest_budget(Problem(step.graph, 0, seed=self.options.seed))
        if found_B is None:
            return record.peak_B
        return max(record.floor_B, min(record.peak_B, found_B + self._constraints(step).outside_B))

    def _plain_B(self, step: MeasuredStep) -> int:
        """Most bytes at once when everything is kept, in the step or in the optimizer's."""
        constraints = self._constraints(step)
        timeline = simulate(step.graph, keep_all_schedule(step.graph))
        held_B = timeline.instants[-1].live_after_B if timeline.instants else 0
        return constraints.outside_B + max(timeline.peak_B, held_B + constraints.optimizer_B)

    def _largest(self, step: MeasuredStep, inputs: Inputs, vary_only: Sequence[str]) -> tuple[int | None, str]:
        """The largest batch below this one that would fit (0 if none would), or why that is not known.

        The model is captured once more, at half the batch; what a step takes at others lies on a line through both.
        """
        try:
            varied = vary(self.model, inputs, only=vary_only)
        except LowtideError as error:
            return None, f"The largest batch was not looked for: {error}"
        if varied.size == 1:
            return 0, ""
        half = max(1, varied.size // 2)
        try:
            other = self._step(varied(half))
        except Exception as error:  # the model's own: batch norm refuses a batch of one
            if half > 1 or isinstance(error, LowtideError):
                raise
            return 0, f"With a batch of one the model raises {type(error).__name__}"
        if structure(other.graph) != structure(step.graph):
            return None, f"The largest batch is not known: the model runs other operators with a batch of {half}"
        samples = [Sample(n, s.graph, s.graph) for n, s in ((half, other), (varied.size, step))]
        options = replace(self.options, planner=FirstPlan())

        @functools.cache
        def ask(size: int) -> bool:
            there = replace(step, graph=foreseen_graph(None, size, *samples))
            return isinstance(self._plan(there, options), PlanRecord)

        return largest(ask, ask, low=1, high=varied.size - 1, step=1) or 0, ""

    def _outside(self, step: MeasuredStep) -> tuple[str, ...]:
        reserve = f" beyond {format_B(self.card.reserve_B)}" if self.card.reserve_B else ""
        found = [f"the driver's context, and workspaces of a GPU's libraries{reserve}", "holes between tensors"]
        found.append("code outside the model, such as a loss computed by the caller")
        if step.trains and self.needs is None:
            found.append(NO_OPTIMIZER)
        elif step.trains and self.needs is not None and self.needs.note:
            found.append(f"what is not known of the optimizer: {self.needs.note}")
        return tuple(found)


@contextlib.contextmanager
def _stepped_as_on_a_gpu(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, an optimizer that was left the choice steps all parameters at once, with temporaries as large as they."""
    left = [
        group
        for group in optimizer.param_groups
        if "foreach" in group and group["foreach"] is None and not (group.get("fused") or group.get("differentiable"))
    ]
    try:
        for group in left:
            group["foreach"] = True
        yield
    finally:
        for group in left:
            group["foreach"] = None


def _card(device: str | int | torch.device, reserve: int | str | None) -> _Card:
    """Reads what a person calls a device.

    Raises:
        LowtideError: if there is no such machine, or its memory is not known.
        BudgetError: if its bytes cannot be read.
    """
    given_B = None if reserve is None else _size_B(reserve, "the reserve")
    number = index_of(device)
    if number is None and not isinstance(device, str | torch.device):
        raise ArgumentError(f'device={shown(device)} names no device: write device="h100", "24GiB", "cpu" or "cuda"')
    name = device.type if isinstance(device, torch.device) else str(device)
    if name == "cuda" and not torch.cuda.is_available():
        raise LowtideError('there is no GPU here: name the one that you mean, as in device="h100"')
    if name in ("cpu", "cuda"):
        memory_B = device_memory_B(name)
        machine = "cpu" if name == "cpu" else nearest_machine(memory_B).name
        usual_B = GPU_RESERVE_B if name == "cuda" else 0
        return _Card(f"the {name} here", machine, memory_B, usual_B if given_B is None else given_B)
    if number is not None or name[:1].isdigit() or "%" in name:
        memory_B = _size_B(name if number is None else number, "the device")
        return _Card(format_B(memory_B), nearest_machine(memory_B).name, memory_B, given_B or 0)
    machine_B = load_machine(name).memories[0].capacity_B
    if machine_B is None:
        raise LowtideError(f'the machine {name!r} does not say how much memory it has: name bytes, as in "24GiB"')
    return _Card(name, name, machine_B, GPU_RESERVE_B if given_B is None else given_B)


def _size_B(text: int | str, what: str) -> int:
    size_B = parse_budget(text).size_B
    if size_B is None:
        raise BudgetError(f'{what} as {text!r} is a share of something unknown: write bytes, or "24GiB"')
    return size_B
