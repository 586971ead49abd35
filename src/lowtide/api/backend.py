"""`torch.compile(model, backend="lowtide", options={"budget": ...})`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from lowtide.arguments import shown
from lowtide.device.dynamo_settings import never_run_eagerly
from lowtide.device.graph_breaks import ends_at_a_break
from lowtide.errors import ArgumentError, BudgetError, BudgetWarning, LowtideError
from lowtide.ir.compilers import EAGER
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.pipeline import SHAPE_LIMIT_s
from lowtide.record import PlanOptions
from lowtide.session.budget_scope import BudgetScope
from lowtide.session.compile_sessions import session_for
from lowtide.session.options import implementation_options, offload_options
from lowtide.session.session import Session
from lowtide.units import parse_budget

_KNOWN = {
    "budget",
    "compiler",
    "scope",
    "host_budget",
    "link",
    "numerics",
    "without",
    "seed",
    "work",
    "time_limit_s",
    "shape_limit_s",
}


def lowtide(
    gm: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: object
) -> Callable[..., Any]:
    """The Dynamo backend.

    A graph is planned when a shape is met for the first time. Training, evaluation and all shapes of one compiled model
    share one budget. Where the model breaks into several graphs, each is planned by itself, inside the whole budget;
    `lowtide.fit` plans them together. From the first use on, Dynamo raises at its recompile limit in this process,
    where it would otherwise go on in eager, outside the budget.

    Arguments:
        options: `budget` (required), `compiler`, `scope`, `host_budget`, `link`, `numerics`, `without`, `seed`, `work`,
            `time_limit_s`, `shape_limit_s`, as for `fit`. Models that are given the same dictionary share its budget.

    Returns: what runs in the graph's place. A missing or malformed budget, or an unknown option, is a `BudgetError`
        at its first call; a level of numerics that there is not, a `NumericsError`.
    """
    try:
        if not isinstance(options, Mapping | None):
            raise ArgumentError(f'options={shown(options)} is no dict: write options={{"budget": "6GiB"}}')
        given = dict(options or {})
        plan_options, budget_scope = _read(given), BudgetScope(given.get("scope", "step"))
    except LowtideError as error:
        return _raising(error)
    never_run_eagerly()
    breaks = ends_at_a_break(gm)
    session = session_for(options, lambda: Session(plan_options, budget_scope), alone=breaks)
    if breaks:
        warnings.warn(
            "the model breaks into several graphs, and torch.compile hands them over one by one: each is planned "
            "within the whole budget, but not all of them together. Use lowtide.fit(model, budget=...), which plans "
            "them as one, or mend the break (TORCH_LOGS=graph_breaks shows it).",
            BudgetWarning,
            stacklevel=2,
        )
    return session.backend(gm, inputs)


def _read(options: dict[str, Any]) -> PlanOptions:
    if unknown := sorted(set(options) - _KNOWN, key=str):
        raise BudgetError(f"unknown options {unknown}; the lowtide backend knows {sorted(_KNOWN)}")
    if "budget" not in options:
        raise BudgetError('the lowtide backend needs options={"budget": ...}, for example "6GiB" or "60% of plain"')
    return PlanOptions(
        budget=parse_budget(options["budget"]),
        seed=options.get("seed", 0),
        work=options.get("work", DEFAULT_WORK),
        time_limit_s=options.get("time_limit_s"),
        shape_limit_s=options.get("shape_limit_s", SHAPE_LIMIT_s),
        compiler=options.get("compiler", EAGER),
        **implementation_options(options.get("numerics", Numerics.EXACT), options.get("without", ())),
        **offload_options(options.get("host_budget"), options.get("link")),
    )


def _raising(error: LowtideError) -> Callable[..., Any]:
    """Raises when it is called: an error raised here and now would reach the user wrapped in one of Dynamo's."""

    def refuse(*_: object) -> Any:
        raise error

    return refuse
