"""`lowtide.plan`: look before you run. And `lowtide.Plan`: what a plan is to the person who holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowtide.errors import CaptureError
from lowtide.frontends.compiling import compiled_call, run_loudly
from lowtide.frontends.enclosure import Enclosure, Scope
from lowtide.frontends.member import member_of
from lowtide.frontends.session import Session
from lowtide.ir.plan import DEFAULT_WORK, Covers, PlanRecord, Status
from lowtide.ir.text import load_plan, save_plan
from lowtide.planners.base import Watch
from lowtide.record import PlanOptions
from lowtide.report.explain import explain, render
from lowtide.report.html import write_html
from lowtide.units import Budget, parse_budget


@dataclass(frozen=True)
class Plan:
    """A plan with its claims, made before the first step.

    Arguments:
        record: the plan as data.
    """

    record: PlanRecord

    @property
    def budget_B(self) -> int:
        """Bytes that were asked for."""
        return self.record.budget_B

    @property
    def budget_kind(self) -> str:
        """What happens to an allocation past the budget, in a word; `"enforced"`, `"capped"` or `"accounted"`."""
        return self.record.budget_kind

    @property
    def peak_B(self) -> int:
        """Predicted most bytes at once."""
        return self.record.peak_B

    @property
    def reserved_B(self) -> int:
        """Predicted bytes reserved, holes and what is set aside included; the peak where nothing is enforced."""
        return self.record.reserved_B

    @property
    def floor_B(self) -> int:
        """No plan of this program lives in fewer bytes, with what is set aside; this is proved."""
        return self.record.floor_B

    @property
    def time_s(self) -> float:
        """Predicted seconds of one step."""
        return self.record.time_s

    @property
    def bound_s(self) -> float:
        """No plan of the bound's class within the budget is faster; this is proved."""
        return self.record.outcome.bound_s

    @property
    def gap(self) -> float:
        """`time_s / bound_s - 1`."""
        return self.record.gap

    @property
    def overhead(self) -> float:
        """Predicted extra time over keeping everything, as a fraction."""
        return self.record.overhead

    @property
    def status(self) -> Status:
        """How planning ended."""
        return self.record.outcome.status

    @property
    def covers(self) -> Covers:
        """What the budget counts, and what it could not know."""
        return self.record.covers

    def explain(self, top: int = 20) -> str:
        """Why the values that matter are kept or recomputed, with source lines, as text."""
        return render(explain(self.record, top))

    def save(self, path: str | Path) -> None:
        """Writes the plan, with the graph it is for, as versioned JSON; the file is replaced as a whole."""
        save_plan(self.record, path)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Reads a saved plan.

        Raises:
            PlanFileError: if the file is damaged, foreign, or of another version.
        """
        return Plan(load_plan(path))

    def to_html(self, path: str | Path) -> None:
        """Writes a report in one file that opens without a network."""
        write_html(self.record, path)

    def __repr__(self) -> str:
        from lowtide.units import format_B, format_percent, format_s

        return (
            f"Plan(peak {format_B(self.peak_B)} of {format_B(self.budget_B)} {self.budget_kind}, "
            f"{format_s(self.time_s)}, overhead {format_percent(self.overhead)}, gap {format_percent(self.gap)}, "
            f"{self.status.name})"
        )


def plan(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: int | str | Budget,
    optimizer: torch.optim.Optimizer | None = None,
    scope: Scope = "step",
    machine: str | None = None,
    seed: int = 0,
    work: int = DEFAULT_WORK,
    time_limit_s: float | None = None,
    dynamic: bool | None = None,
    watch: Watch | None = None,
) -> Plan:
    """Plans the training of a model without taking a step.

    The model is captured by a call that computes nothing: its operators do not run, parameters, buffers and
    generators stay as they are. Python code of its `forward` does run once. The same capture serves `fit`, so a
    saved plan can be given to it.

    Arguments:
        model: in the mode to plan for; a module in training mode is planned with its backward.
        args, kwargs: what the model is called with.
        budget: see `parse_budget`.
        optimizer: its state and temporaries count.
        scope: as for `fit`.
        machine: predict for a machine that is not here ("h200", or a machine file) instead of measuring.
        seed, work, time_limit_s: see `Problem`.
        dynamic: as in `torch.compile`.
        watch: told of planning's progress.

    Raises:
        BudgetError: if the budget is malformed.
        OptimizerError: if the optimizer is none.
        InfeasibleBudget: if no plan fits.
        CaptureError: if nothing could be captured.
    """
    options = PlanOptions(budget=parse_budget(budget), seed=seed, work=work, time_limit_s=time_limit_s, machine=machine)

    enclosure = Enclosure(scope, [member_of(model, optimizer)])
    session = Session(options, enclosure, watch=watch, whole_model=True)
    call = compiled_call(model, session.backend, dynamic)
    with session.dry() as calls:
        run_loudly(call, tuple(args), dict(kwargs or {}))
    if not calls:
        raise CaptureError(NOTHING_CAPTURED)
    return Plan(session.plan_calls(calls, install=False))


NOTHING_CAPTURED = (
    "no graph of this model was captured: all of it ran in plain Python, outside any plan. This happens when its "
    "forward is disabled for Dynamo (torch._dynamo.disable), breaks inside a loop, or computes nothing. "
    "Run with TORCH_LOGS=graph_breaks to see why."
)
