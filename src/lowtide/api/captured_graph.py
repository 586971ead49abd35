"""The graph of a model's step, predicted for a machine that need not be here. Nothing runs, and no bytes are needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from lowtide.api.plan import NOTHING_CAPTURED
from lowtide.errors import CaptureError
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.pipeline import measure
from lowtide.record import PlanOptions
from lowtide.session.budget_scope import BudgetScope
from lowtide.session.dynamo_call import compiled_call, run_loudly
from lowtide.session.inputs import Inputs
from lowtide.session.member import member_of
from lowtide.session.meta_models import StandIns, in_place_of, with_addresses
from lowtide.session.options import implementation_options
from lowtide.session.planning import MeasuredStep, step_of
from lowtide.session.session import Session
from lowtide.units import Budget


def captured_step(session: Session, model: torch.nn.Module, inputs: Inputs, machine: str) -> MeasuredStep:
    """Captures a call of a session's model that computes nothing, and predicts its operators' seconds.

    Arguments:
        inputs: positional and keyword arguments; every tensor, the model's too, has an address.
        machine: by name ("a100") or file.

    Raises:
        CaptureError: if nothing could be captured.
        LowtideError: if there is no such machine.
    """
    with session.dry() as calls:
        run_loudly(compiled_call(model, session.backend, None, exact=session.is_exact), *inputs)
    if not calls:
        raise CaptureError(NOTHING_CAPTURED)
    graphs = [measure(c.specialised.graph, c.specialised.held, machine, None) for c in calls]
    return step_of(calls, graphs, session.budget_scope.persistent)


def captured_graph(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    machine: str,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
) -> Graph:
    """Captures a model's step and predicts its operators' seconds.

    Arguments:
        model: in the mode to plan for; it may be on the meta device, or made of fake tensors.
        args, kwargs: what it is called with; they may be on the meta device, too.
        machine: by name ("a100") or file.
        numerics, without: which implementations the graph has next to the program's own; see `lowtide.plan`.

    Returns: the graph; for a model that breaks into several, their union.

    Raises:
        CaptureError: if nothing could be captured.
        LowtideError: if there is no such machine.
    """
    stand_ins = StandIns()
    options = PlanOptions(budget=Budget(of_plain=1.0), machine=machine, **implementation_options(numerics, without))
    with with_addresses(model, stand_ins):
        inputs: Inputs = in_place_of((tuple(args), dict(kwargs or {})), stand_ins)
        session = Session(options, BudgetScope("none", [member_of(model, None)]), whole_model=True)
        return captured_step(session, model, inputs, machine).graph
