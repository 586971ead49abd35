"""The graph of a model's step, predicted for a machine that need not be here. Nothing runs, and no bytes are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lowtide.errors import CaptureError
from lowtide.frontends.compiling import compiled_call, run_loudly
from lowtide.frontends.enclosure import Enclosure
from lowtide.frontends.member import member_of
from lowtide.frontends.plan import NOTHING_CAPTURED
from lowtide.frontends.planning import step_of
from lowtide.frontends.session import Session
from lowtide.frontends.stand_ins import StandIns, in_place_of, with_addresses
from lowtide.ir.graph import Graph
from lowtide.pipeline import measure
from lowtide.record import PlanOptions
from lowtide.units import Budget


def captured_graph(
    model: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, machine: str
) -> Graph:
    """Captures a model's step and predicts its operators' seconds.

    Arguments:
        model: in the mode to plan for; it may be on the meta device, or made of fake tensors.
        args, kwargs: what it is called with; they may be on the meta device, too.
        machine: by name ("a100") or file.

    Returns: the graph; for a model that breaks into several, their union.

    Raises:
        CaptureError: if nothing could be captured.
        LowtideError: if there is no such machine.
    """
    stand_ins = StandIns()
    options = PlanOptions(budget=Budget(of_plain=1.0), machine=machine)
    with with_addresses(model, stand_ins):
        inputs = in_place_of((tuple(args), dict(kwargs or {})), stand_ins)
        session = Session(options, Enclosure("none", [member_of(model, None)]), whole_model=True)
        with session.dry() as calls:
            run_loudly(compiled_call(model, session.backend, None), *inputs)
        if not calls:
            raise CaptureError(NOTHING_CAPTURED)
        graphs = [measure(c.specialised.graph, c.specialised.held, machine, None) for c in calls]
        return step_of(calls, graphs, session.enclosure.persistent).graph
