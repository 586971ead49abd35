"""`lowtide.verify`: the same bits as plain PyTorch, shown on your model and your machine."""

from __future__ import annotations

import copy
import gc
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lowtide.device.generator_guard import unchanged_generators
from lowtide.errors import LowtideError, VerificationError
from lowtide.frontends.compared_steps import compared
from lowtide.frontends.enclosure import Scope
from lowtide.frontends.fit import VERIFIED_ALONE
from lowtide.frontends.in_force import STEPS_IN_FORCE
from lowtide.frontends.knowledge import Knowledge
from lowtide.frontends.member import check_optimizer
from lowtide.frontends.moving import HostBudget, Rate
from lowtide.frontends.plan_in_hand import Plan
from lowtide.frontends.session import Session
from lowtide.frontends.taking_steps import LossFn, Subject, take
from lowtide.frontends.verification import Taken, Task, Verification
from lowtide.ir.numerics import Numerics, parse_numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.planners.base import Watch
from lowtide.units import Budget

STEPS = 2
"""The first is the one in which lowtide captures and plans; the second is like all that follow."""


def verify(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: int | str | Budget | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: LossFn | None = None,
    steps: int = STEPS,
    plan: str | Path | Plan | None = None,
    scope: Scope = "step",
    host_budget: HostBudget = None,
    link: Rate = None,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = DEFAULT_WORK,
    time_limit_s: float | None = None,
    dynamic: bool | None = None,
    watch: Watch | None = None,
) -> Verification:
    """Takes the same steps with plain PyTorch and inside a budget, and compares everything bit by bit.

    Outputs, gradients, parameters, buffers, the optimizer's state and the states of all generators (torch's, Python's,
    numpy's) are compared after every step; plain PyTorch is compared with itself first. Copies of the model take the
    steps, one after another: the model, its gradients, the optimizer and the generators stay as they are. That takes
    memory for a copy and a plain step; `lowtide verify` on the command line takes each step in a process of its own.

    Arguments:
        model: any `nn.Module` that can be copied, in the mode to verify.
        args, kwargs: what it is called with.
        budget: bytes, "6GiB", "60%" of the device, "60% of plain"; see `parse_budget`.
        optimizer: of the model's parameters; its copy steps after every backward. Gradients are set to None in
            between, with and without one.
        loss_fn: makes the loss of what the model returns. None where that is, or has, a `loss`; else everything that
            the model returns gets a gradient that is the same in all steps.
        steps: how many are taken. The first is the one in which lowtide captures and plans.
        plan: a saved plan, or a `Plan`, to verify instead of planning.
        scope, host_budget, link, numerics, without, seed, work, time_limit_s, dynamic, watch: as for `lowtide.fit`.
            Below `numerics="exact"` bits may differ: then it is said whether they do by no more than the level admits.

    Returns: what was compared, what differs, and the first operator that does.

    Raises:
        VerificationError: if the model cannot be copied, or a plain step needs more memory than there is.
        InfeasibleBudget: if no plan fits.
        CaptureError: if the model cannot be captured.
        LowtideError: whatever else `lowtide.fit` and the first step raise.
    """
    if optimizer is not None:
        check_optimizer(optimizer)
    if steps < 1:
        raise LowtideError(f"steps={steps}: at least one step has to be taken")
    planned = {
        "budget": budget, "plan": plan, "scope": scope, "host_budget": host_budget, "link": link, "numerics": numerics,
        "without": without, "seed": seed, "work": work, "time_limit_s": time_limit_s, "dynamic": dynamic,
        "watch": watch,
    }  # fmt: skip
    subject = Subject(model, tuple(args), dict(kwargs or {}), optimizer, loss_fn)
    return _verified(subject, planned, parse_numerics(numerics), steps)


def _verified(
    subject: Subject,
    planned: Mapping[str, Any],
    numerics: Numerics,
    steps: int,
    knowledge: Knowledge | None = None,
) -> Verification:
    """Compares steps of copies of a model; see `verify`."""

    def with_a_copy(task: Task) -> Taken:
        with unchanged_generators():
            try:
                return take(copied(subject), task, planned, knowledge)
            finally:
                gc.collect()  # a copy and its compiled call refer to each other

    with tempfile.TemporaryDirectory(prefix="lowtide-verify-") as folder:
        return compared(with_a_copy, numerics, steps, Path(folder))


class FirstSteps:
    """Verifies the first step of every shape of a fitted model, before it is taken.

    Arguments:
        model, optimizer: of which copies take the steps.
        session: of the fitted model, which gets the plans that were verified.
        dynamic: as for `lowtide.fit`.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, session: Session, dynamic: bool | None
    ) -> None:
        self._model = weakref.ref(model)
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._session, self._dynamic = session, dynamic
        self._verified: dict[tuple[Any, ...], None] = {}  # those used last at the end

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Verifies a call, if none like it has been.

        Raises:
            VerificationError: if its bits are not those of plain PyTorch, or that cannot be found out.
        """
        model, options = self._model(), self._session.options
        assert model is not None, "it is being called"
        key = (*_shapes(args, kwargs), model.training, torch.is_grad_enabled(), options.budget)
        if key in self._verified:
            self._verified[key] = self._verified.pop(key)
            return
        if len(self._session.enclosure.members) > 1:  # another model has come to share the budget
            raise VerificationError(VERIFIED_ALONE)
        planned = {
            "budget": options.budget, "plan": None if self._session.given is None else Plan(self._session.given),
            "scope": self._session.enclosure.scope, "host_budget": options.host_budget_B, "link": options.link_Bps,
            "numerics": options.numerics, "without": options.without, "seed": options.seed, "work": options.work,
            "time_limit_s": options.time_limit_s, "shape_limit_s": options.shape_limit_s, "dynamic": self._dynamic,
            "watch": self._session.watch,
        }  # fmt: skip
        optimizer = None if self._optimizer is None else self._optimizer()
        subject = Subject(model, args, kwargs, optimizer)
        found = _verified(subject, planned, options.numerics, STEPS, self._session.knowledge)
        if not found.kept:
            raise VerificationError(
                f"this step was verified before it is taken, and is refused; nothing has been changed.\n"
                f"{found.explain()}",
                verification=found,
            )
        self._verified[key] = None
        while len(self._verified) > STEPS_IN_FORCE:  # the plan of a step not taken for long is made again
            self._verified.pop(next(iter(self._verified)))


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes two calls: sizes, dtypes and devices of tensors, and everything that is none."""
    leaves = tree_leaves((args, kwargs))
    return tuple((*t.shape, t.dtype, t.device) if isinstance(t, torch.Tensor) else repr(t) for t in leaves)


def copied(subject: Subject) -> Subject:
    """A copy that can be stepped while nothing of the model changes.

    Raises:
        VerificationError: if there is none that would do the same.
    """
    memo: dict[int, Any] = {}
    try:
        given = (subject.model, subject.args, subject.kwargs, subject.loss_fn)
        model, args, kwargs, loss_fn = copy.deepcopy(given, memo)
        optimizer = None if subject.optimizer is None else _copied_optimizer(subject.optimizer, memo)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise VerificationError(_NO_COPY.format(f"it cannot be copied ({reason})")) from error
    if _layout(subject.model) != _layout(model):
        raise VerificationError(_NO_COPY.format("a copy of its parameters and buffers lies otherwise in memory"))
    return Subject(model, args, kwargs, optimizer, loss_fn)


_NO_COPY = (
    "steps are verified with copies of the model, and of this one there is none: {}. Type `lowtide verify "
    "FILE.py:FUNCTION`, which has your function make the model anew for every step, in a process of its own."
)


def _copied_optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """A copy of an optimizer without hooks, and without what others have put over its methods."""
    made = type(optimizer).__new__(type(optimizer))
    memo[id(optimizer)] = made
    for name, value in vars(optimizer).items():
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            vars(made)[name] = OrderedDict()
        elif not (callable(value) and hasattr(type(optimizer), name)):
            vars(made)[name] = copy.deepcopy(value, memo)
    return made


def _layout(model: torch.nn.Module) -> list[tuple[Any, ...]]:
    """Name, shape and strides of every parameter and buffer, and which of them share a storage."""
    storages: dict[int, int] = {}
    found: list[tuple[Any, ...]] = []
    for name, tensor in _named(model):
        if tensor.layout is not torch.strided:
            found.append((name, tensor.layout))
            continue
        own = storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
        found.append((name, tensor.shape, tensor.stride(), own))
    return found


def _named(model: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
