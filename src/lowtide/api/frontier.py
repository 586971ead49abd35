"""`lowtide.frontier`: the least time at every budget, before the first step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from lowtide.api.plan import captured_calls
from lowtide.arguments import call_arguments, yes_or_no
from lowtide.device.arena import nothing_engaged
from lowtide.ir.compilers import EAGER
from lowtide.ir.numerics import Numerics
from lowtide.pipeline import environment, linked
from lowtide.planners.frontier import POINTS, WORK, Watch
from lowtide.record import PlanOptions
from lowtide.results.frontier import Frontier as Frontier
from lowtide.results.make_frontier import Effort, traced
from lowtide.session.budget_scope import BudgetScope, Scope
from lowtide.session.member import member_of
from lowtide.session.options import HostBudget, Rate, implementation_options, offload_options
from lowtide.session.planning import constraints_of, covers_within, measure_step
from lowtide.session.session import Session
from lowtide.units import Budget


def frontier(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scope: Scope = "step",
    points: int = POINTS,
    machine: str | None = None,
    host_budget: HostBudget = None,
    link: Rate = None,
    baselines: bool = True,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = WORK,
    time_limit_s: float | None = None,
    dynamic: bool | None = None,
    compiler: str = EAGER,
    watch: Watch | None = None,
) -> Frontier:
    """Finds the least time of a model's training step at every budget, from keep-all to the floor.

    Nothing is trained: the model is captured as by `lowtide.plan`. Budgets are those of `fit`: parameters, optimizer
    state, what is set aside and, where the budget is enforced, the holes between addresses are in them. A plan behind
    the curve is given to `fit` by `fit(model, plan=frontier.plan("6GiB"))`; `fit(model, budget="6GiB")` searches anew,
    without neighbours to begin from, and at tight budgets may find less.

    Arguments:
        model: in the mode to plan for; a module in training mode is planned with its backward.
        args, kwargs: what the model is called with.
        optimizer: its state and temporaries count.
        scope: as for `fit`.
        points: how many budgets to plan for; the widest steps of the curve get most of them.
        machine: predict for a machine that is not here ("h200", or a machine file) instead of measuring.
        host_budget, link: what may be offloaded to the host, and how fast; as for `lowtide.plan`.
        baselines: whether to ask the classical methods that answer within seconds, too. Their plans are counted in
            live bytes: holes between addresses are not held against them. Where one of them is better than the
            curve, the curve is searched again from there.
        numerics, without: which implementations may be used next to the program's own; as for `fit`.
        seed: the same seed and work give the same frontier.
        work: effort at each budget, by default a quarter of one plan's, since it begins from a neighbour's plan; easy
            budgets need less.
        time_limit_s: for planning altogether. What was found until then is the result, and says so.
        dynamic: as in `torch.compile`.
        compiler: whose kernels run, as for `fit`.
        watch: told which budget is planned, and of that planning's progress.

    Returns: the points so far, and a mark that says so, if interrupted with Ctrl-C.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range.
        BudgetError, LinkError: if there are fewer than two points; if the host budget or the link is malformed.
        NumericsError, OptimizerError: if there is no such level, or nothing to leave out so; if the optimizer is none.
        CaptureError: if nothing could be captured.
        KeyboardInterrupt: on Ctrl-C before the first plan.
    """
    yes_or_no("dynamic", dynamic, or_none=True)
    args, kwargs = call_arguments(args, kwargs)
    effort = Effort(points=points, baselines=baselines, seed=seed, work=work, time_limit_s=time_limit_s, watch=watch)
    menu, moves = implementation_options(numerics, without), offload_options(host_budget, link)
    options = PlanOptions(
        budget=Budget(of_plain=1.0), seed=seed, work=work, machine=machine, compiler=compiler, **menu, **moves
    )
    budget_scope = BudgetScope(scope, [member_of(model, optimizer)])
    session = Session(options, budget_scope, whole_model=True)
    calls = captured_calls(session, model, args, kwargs, dynamic)
    with nothing_engaged():
        step = measure_step(calls, budget_scope.persistent, options, session.cache, session.lookup)
        session.expect_between(step)
        options = linked(options, step.device, session.cache)
        constraints = constraints_of(step, options, budget_scope)
        covers, here = covers_within(constraints, step, budget_scope), environment(step.device)
        return traced(step.graph, effort, options, constraints=constraints, covers=covers, environment=here)
