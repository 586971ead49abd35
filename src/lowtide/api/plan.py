"""`lowtide.plan`: look before you run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lowtide.arguments import call_arguments, function, path, yes_or_no
from lowtide.errors import CaptureError
from lowtide.ir.compilers import EAGER
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.planners.base import Watch
from lowtide.progress import told
from lowtide.record import PlanOptions
from lowtide.results.plan import Plan
from lowtide.session.budget_scope import BudgetScope, Scope
from lowtide.session.dynamo_call import compiled_call, run_loudly
from lowtide.session.graph_discovery import Call
from lowtide.session.member import member_of
from lowtide.session.options import HostBudget, Rate, implementation_options, offload_options
from lowtide.session.session import Session
from lowtide.units import Budget, parse_budget


def plan(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: int | str | Budget,
    optimizer: torch.optim.Optimizer | None = None,
    scope: Scope = "step",
    machine: str | None = None,
    host_budget: HostBudget = None,
    link: Rate = None,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = DEFAULT_WORK,
    time_limit_s: float | None = None,
    dynamic: bool | None = None,
    compiler: str = EAGER,
    save_graph: str | Path | None = None,
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
        host_budget, link: what may be offloaded to the host, and how fast; as for `fit`. A machine brings its own link,
            which `link` may hold to less.
        numerics: how far results may be from plain PyTorch's: "exact" (the same bits), "reassociated" (the same
            arithmetic, summed in another order) or "lossy".
        without: implementations to leave out, by kind ("in-place", "saved values", "algorithms", "loss", "fusion") or
            by family.
        seed, work, time_limit_s: see `Problem`.
        dynamic: as in `torch.compile`.
        compiler: whose kernels run, as for `fit`.
        save_graph: where to write the profiled graph, before it is planned: what does not fit is written, too.
        watch: told of planning's progress.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range.
        BudgetError: if a budget is malformed.
        LinkError: if the link is malformed, or the machine has none.
        NumericsError: if there is no such level, or nothing of the name that is to be left out.
        OptimizerError: if the optimizer is none.
        InfeasibleBudget: if no plan fits.
        CaptureError: if nothing could be captured.
    """
    yes_or_no("dynamic", dynamic, or_none=True)
    function("watch", watch, "watch=print")
    path("save_graph", save_graph, '"graph.json"')
    args, kwargs = call_arguments(args, kwargs)
    options = PlanOptions(
        budget=parse_budget(budget),
        seed=seed,
        work=work,
        time_limit_s=time_limit_s,
        machine=machine,
        compiler=compiler,
        **implementation_options(numerics, without),
        **offload_options(host_budget, link),
    )

    budget_scope = BudgetScope(scope, [member_of(model, optimizer)])
    session = Session(options, budget_scope, watch=watch, whole_model=True)
    with told():
        calls = captured_calls(session, model, args, kwargs, dynamic)
        return Plan(session.plan_calls(calls, install=False, save_graph=save_graph))


def captured_calls(
    session: Session,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic: bool | None,
) -> list[Call]:
    """The graphs of one call of a model, in which nothing is computed.

    Raises:
        ArgumentError: if that is nothing that a model can be called with.
        CaptureError: if there are none.
    """
    args, kwargs = call_arguments(args, kwargs)
    call = compiled_call(model, session.backend, dynamic, exact=session.is_exact, compiler=session.options.compiler)
    with session.dry() as calls:
        run_loudly(call, args, kwargs)
    if not calls:
        raise nothing_captured(session.options.compiler)
    return calls


NOTHING_CAPTURED = (
    "no graph of this model was captured: all of it ran in plain Python, outside any plan. This happens when its "
    "forward is disabled for Dynamo (torch._dynamo.disable), breaks inside a loop, or computes nothing. "
    "Run with TORCH_LOGS=graph_breaks to see why."
)
_NOTHING_COMPILED = (
    ' What torch.compile leaves to plain Python, as recurrent layers of torch.nn, compiler="eager" captures.'
)


def nothing_captured(compiler: str, reasons: str = "") -> CaptureError:
    """The refusal of a model of which no graph was captured.

    Arguments:
        compiler: whose kernels were to run.
        reasons: why, as Dynamo says it.
    """
    remedy = "" if compiler == EAGER else _NOTHING_COMPILED
    return CaptureError(NOTHING_CAPTURED + remedy + (f" Dynamo says: {reasons}" if reasons else ""))
