"""`lowtide.fit`: the same model, trained inside a budget."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lowtide.api.plan import nothing_captured
from lowtide.arguments import function, path, yes_or_no
from lowtide.capture.fidelity import compiled_already
from lowtide.device.looked_through import is_compiled_module
from lowtide.device.modules import hooks_of_all_modules, replace_call, replaced_call
from lowtide.device.process_groups import calling_data_parallel, model_inside
from lowtide.device.recomputation import ended_behind
from lowtide.device.trees import tensors_in
from lowtide.distributed.data_parallel import agreement_of, reordered_sums
from lowtide.errors import BudgetError, LowtideError, PlanMismatch, VerificationError
from lowtide.ir.compilers import EAGER
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.pipeline import SHAPE_LIMIT_s
from lowtide.planners.base import Watch
from lowtide.progress import told
from lowtide.record import PlanOptions
from lowtide.results.plan import Plan
from lowtide.session.budget_scope import BudgetScope, Scope
from lowtide.session.dynamo_call import WholeCall, compiled_call, run_loudly
from lowtide.session.eager_guard import refuse_in_eager
from lowtide.session.handle import Fitted, keep
from lowtide.session.member import Member, check_model, check_module, member_of
from lowtide.session.options import (
    HostBudget,
    ImplementationOptions,
    OffloadOptions,
    Rate,
    implementation_options,
    offload_options,
)
from lowtide.session.session import Session, inexact
from lowtide.units import Budget, parse_budget

if TYPE_CHECKING:
    from lowtide.api.verify.verified_steps import FirstSteps

M = TypeVar("M", bound=torch.nn.Module)
VERIFIED_ALONE = (
    "verify=True with share=: a step is verified with copies of one model, and the others under its budget would be "
    "missing. Verify each by itself with lowtide.verify, and leave verify= out."
)
_COMPILED = (
    'verify=True with compiler="inductor": steps are verified against plain PyTorch, whose bits these are not. Leave '
    "verify= out, and compare a few steps with those of torch.compile(copy.deepcopy(model))."
)
_HOOK_SETS = 4  # compiled calls kept, each for other hooks of all modules


def fit(
    model: M,
    budget: int | str | Budget | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    plan: str | Path | Plan | None = None,
    share: torch.nn.Module | None = None,
    scope: Scope = "step",
    host_budget: HostBudget = None,
    link: Rate = None,
    numerics: str | Numerics | None = None,
    without: Collection[str] | None = None,
    seed: int = 0,
    work: int = DEFAULT_WORK,
    time_limit_s: float | None = None,
    shape_limit_s: float | None = SHAPE_LIMIT_s,
    dynamic: bool | None = None,
    compiler: str = EAGER,
    verify: bool = False,
    ranks: bool | None = None,
    watch: Watch | None = None,
) -> M:
    """Makes a model train inside a budget, and returns it.

    Nothing is planned yet: the first call of each shape captures, measures and plans, before anything of the model
    runs. Names in `state_dict`, hooks and attributes are left as they are. Train exactly as before.

    Arguments:
        model: any `nn.Module`. Of one in `DistributedDataParallel`, the model inside is captured, and its ranks agree.
        budget: bytes, "6GiB", "60%" of the device, "60% of plain"; see `parse_budget`.
        optimizer: its state and temporaries count, and its step allocates inside the budget. Without one,
            `Plan.covers` says that they are outside.
        scope: which allocations the budget is enforced on. "step": whatever is allocated between a call and the end of
            its backward, and in the optimizer's step; code outside the graphs that does not fit there is served
            past the budget with a `BudgetWarning`, since it may be anybody's. "process": whatever any thread
            allocates from the first step on, data and other models included; what does not fit is refused. "none":
            nothing; the budget is accounted.
        plan: a saved plan, or a `Plan`, to use for the training graph instead of planning. Its budget is taken if
            none is given. Its decisions are carried over to the program captured here, if that, its shapes, torch,
            device and threads are the same; nothing of its own graph is run.
        share: a fitted model whose budget (and scope) this one shares, as generator and discriminator do: parameters,
            buffers and optimizer states of all of them count in every step, and their steps use the same arena.
        host_budget, link: bytes of host memory, or "64GiB", in which offloaded values may wait, and the bandwidth limit
            in each direction, "12 GB/s". Neither counts in the budget. On CPU the host is memory outside the arena.
        numerics: how far results may be from plain PyTorch's: "exact" (the same bits; so it is if nothing is said),
            "reassociated" (the same arithmetic, summed in another order) or "lossy". A `Plan` made here says it itself;
            a plan file for more than "exact" is refused unless it is said.
        without: implementations to leave out, by kind ("in-place", "saved values", "algorithms", "loss", "fusion") or
            by family. A saved plan says that itself, too.
        seed, work, time_limit_s: see `Problem`.
        shape_limit_s: for how long a plan is sought for a further shape (another batch size, another length). The plan
            of the most similar shape is taken over at once, made to fit and checked; a faster one found in that time
            takes its place. None measures and searches every shape in full.
        dynamic: as in `torch.compile`.
        compiler: whose kernels run. "eager": PyTorch's own, with plain PyTorch's bits. "inductor": those that Inductor
            compiles for the model, with the bits of `torch.compile(model)` at every budget; each shape is compiled by
            itself.
        verify: whether the first step of every shape is compared with plain PyTorch's, bit by bit, before it is taken:
            by copies of the model, as `lowtide.verify` does, which needs memory for a copy and a plain step as well.
            Where bits differ that should not, `VerificationError` is raised, and nothing has been changed. Where
            gradients come to a backward otherwise than in any verified step, the backward is compared at its end.
        ranks: whether all ranks of torch's default process group train this model together, and so agree on one plan
            before each step: nobody runs unless all can. None: those of a model in `DistributedDataParallel` do.
            Every rank has to call `fit`, and in training (`model.train()`, gradients on) the model equally often.
        watch: called with planning's progress.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range; if parameters are tensors made of others,
            as `fully_shard` makes them, or have no shape yet.
        BudgetError, LinkError: if a budget is malformed, missing, or given with `share`; if the link is malformed.
        InexactCapture: if `torch.compile` or `model.compile()` has compiled the model, and its bits are asked for.
        LowtideError, OptimizerError: if `share` is not a fitted model; if the optimizer is none.
        NumericsError: if there is no such level, or nothing of the name that is to be left out.
        PlanFileError, PlanMismatch: if the plan file cannot be used; if its results may differ more than `numerics`.
        VerificationError: if `verify` and `share` are both given, or `verify` and compiled kernels.

    With other ranks, every call raises `RanksError` if another one cannot take the step.
    The first call raises `InfeasibleBudget` if no plan fits, and `CaptureError` if nothing was captured.
    """
    check_model(model)
    yes_or_no("dynamic", dynamic, or_none=True)
    yes_or_no("ranks", ranks, or_none=True)
    function("watch", watch, "watch=print")
    if not isinstance(plan, Plan):
        path("plan", plan, '"step.plan"')
    given = plan if plan is None or isinstance(plan, Plan) else Plan.load(plan)
    (budget, moves), menu = _budgets(given, budget, host_budget, link), _menu(numerics, without, given)
    host = None if share is None else _host(share, model, budget, verify)
    size = parse_budget(budget) if host is None else host.session.options.budget  # type: ignore[arg-type]
    options = PlanOptions(
        budget=size, seed=seed, work=work, time_limit_s=time_limit_s, compiler=compiler, **menu, **moves
    )
    options = dataclasses.replace(options, shape_limit_s=shape_limit_s)
    compiled_before = (compiled_already(type(model).__name__),) if _is_compiled(model) else ()
    doubts = (*compiled_before, *reordered_sums(model))
    if doubts and options.numerics is Numerics.EXACT:
        raise inexact(doubts)
    if verify and options.compiler != EAGER:
        raise VerificationError(_COMPILED)
    member, budget_scope = _in_budget_scope(model, optimizer, host, scope)
    session = Session(options, budget_scope, None if given is None else given.record, watch, whole_model=True)
    session.doubt(*doubts)
    session.agreement = agreement_of(model, ranks)
    first = None
    if verify:
        from lowtide.api.verify.verified_steps import FirstSteps  # which fits copies by this function

        first = FirstSteps(model, optimizer, session, dynamic)
    return _install(model, Fitted(session, member), dynamic, first)


def _budgets(
    plan: Plan | None, budget: int | str | Budget | None, host_budget: HostBudget, link: Rate
) -> tuple[int | str | Budget | None, OffloadOptions]:
    """The budget, and what may be offloaded to the host: as is said, or else as a saved plan was made.

    Raises:
        BudgetError, LinkError: see `fit`.
    """
    if plan is None:
        return budget, offload_options(host_budget, link)
    if host_budget is None:
        host_budget, link = plan.record.host_budget_B, plan.record.link_Bps if link is None else link
    return (plan.budget_B if budget is None else budget), offload_options(host_budget, link)


def _in_budget_scope(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, host: Fitted | None, scope: Scope
) -> tuple[Member, BudgetScope]:
    """The model as a member of a budget scope: one of its own, or that of the model whose budget it shares."""
    member = member_of(model, optimizer)
    budget_scope = BudgetScope(scope, [member]) if host is None else host.session.budget_scope
    unfit(model)
    if host is not None:
        host.admit(member)
    weakref.finalize(model, budget_scope.leave, member).atexit = False
    budget_scope.watch()  # a first step whose closure calls the model meets the hard budget when it has begun
    return member, budget_scope


def _menu(numerics: str | Numerics | None, without: Collection[str] | None, plan: Plan | None) -> ImplementationOptions:
    """The implementations that may be used: as is said, or else as a saved plan was made.

    Raises:
        NumericsError, PlanMismatch: see `fit`.
    """
    saved, left_out = (Numerics.EXACT, ()) if plan is None else (plan.record.numerics, plan.record.without)
    if numerics is None and plan is not None and plan.is_from_file and saved is not Numerics.EXACT:
        raise PlanMismatch(
            f"the plan file was made for numerics={saved.value!r}, and a file does not decide that results may differ "
            f"from plain PyTorch's: say numerics={saved.value!r} to lowtide.fit if they may, or plan again."
        )
    menu = implementation_options(saved if numerics is None else numerics, () if without is None else without)
    level = menu["numerics"]
    if not level.admits(saved):
        raise PlanMismatch(
            f"the saved plan was made for numerics={saved.value!r}, which numerics={level.value!r} does not admit: "
            "plan again with lowtide.plan at that level, or leave numerics= out."
        )
    return menu if without is not None else {"numerics": level, "without": frozenset(left_out)}


def _install(model: M, handle: Fitted, dynamic: bool | None, first: FirstSteps | None) -> M:
    """Puts lowtide's call in the place of the model's own, and returns the model.

    Arguments:
        first: verifies steps; None where nobody does.
    """
    session = handle.session

    def make() -> WholeCall:
        check_model(model)  # it may have been sharded since
        options = session.options
        return compiled_call(model, session.backend, dynamic, exact=session.is_exact, compiler=options.compiler)

    compiled = Compiled(make)

    # Dynamo's frames and a session's discovery know one call at a time.
    turn = threading.RLock() if first is None else first.turn

    def call(*args: Any, **kwargs: Any) -> Any:
        with turn, told():
            session.doubt(*reordered_sums(calling_data_parallel()))  # it may have been wrapped since
            verified = None if first is None else first.begin(args, kwargs)
            results = _guarded(session, compiled, args, kwargs)
            if first is not None and verified is not None:
                first.watch(verified, results)
            return results

    inside = model_inside(model)
    handle.compiled = replaced_call(inside)
    replace_call(inside, call)
    kept = keep(handle)
    for named in (model, inside):
        named.lowtide = kept  # type: ignore[assignment]
    return model


def unfit(model: M) -> M:
    """Makes a fitted model what it was before, and returns it: its arena closes when its last tensor has gone.

    A model that `model.compile()` had compiled is compiled again.

    Arguments:
        model: fitted; a plain one is left as it is.

    Raises:
        ArgumentError: if it is no module.
    """
    inside = model_inside(check_module(model))
    handle = getattr(inside, "lowtide", None)
    if isinstance(handle, Fitted):
        handle.leave()
        replace_call(inside, handle.compiled)
        for named in {model, inside}:
            vars(named).pop("lowtide", None)
    return model


def _is_compiled(model: torch.nn.Module) -> bool:
    """Whether the user has compiled a model, before it was fitted for the first time perhaps."""
    handle = getattr(model, "lowtide", None)
    return handle.compiled is not None if isinstance(handle, Fitted) else is_compiled_module(model)


def _host(share: torch.nn.Module, model: torch.nn.Module, budget: object, verify: bool) -> Fitted:
    """The handle of the model whose budget is to be shared.

    Raises:
        BudgetError: if a budget of its own was given as well, or the model is to share with itself.
        LowtideError: if that model was not fitted.
        VerificationError: if the model's steps are to be verified.
    """
    handle = getattr(share, "lowtide", None)
    if not isinstance(handle, Fitted):
        raise LowtideError("share= names a model that was not fitted: call lowtide.fit(it, budget=...) first")
    if share is model:
        raise BudgetError("share= names the model itself: give it a budget, or the name of another fitted model")
    if verify:
        raise VerificationError(VERIFIED_ALONE)
    if budget is not None:
        raise BudgetError("share= says which budget to use: leave budget= out, or plan=, which brings one")
    return handle


class Compiled:
    """A compiled call that survives exceptions of the user's code, and hooks of all modules that come and go.

    Dynamo abandons a frame when an exception leaves it while it is traced; then all is compiled anew. It does not look
    whether there are other hooks of all modules than when it traced; each set of them has its own call.
    """

    def __init__(self, make: Callable[[], WholeCall]) -> None:
        self._make = make
        self._calls: dict[tuple[Any, ...], WholeCall] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooks = hooks_of_all_modules()
        call = self._calls.get(hooks)
        if call is None:
            while len(self._calls) >= _HOOK_SETS:
                self._calls.pop(next(iter(self._calls)))
            call = self._calls[hooks] = self._make()
        try:
            return run_loudly(call, args, kwargs)
        except LowtideError:
            raise
        except Exception:
            call.begin_anew()
            raise


def _guarded(session: Session, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One call of a fitted model: in lowtide's code, or an error."""
    refuse_in_eager("a model fitted by lowtide.fit")
    before, grad_enabled = session.calls, torch.is_grad_enabled()
    if session.broken:
        session.step_key = _signature(args, kwargs, grad_enabled)
    with (
        ended_behind(session.check_end_of_recomputation),
        session.step(lambda: _signature(args, kwargs, grad_enabled)),
    ):
        result = compiled(*args, **kwargs)
        if session.calls == before:
            reasons = "; ".join(dict.fromkeys(b.cause for b in session.breaks))
            raise nothing_captured(session.options.compiler, reasons)
    return result


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool) -> tuple[int, ...]:
    """The shapes of a call, as a key: sizes of every tensor, whether gradients are on."""
    sizes = [n for leaf in tensors_in((args, kwargs)) for n in (-1, *leaf.shape)]
    return (int(grad_enabled), *sizes)
