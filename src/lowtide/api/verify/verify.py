"""`lowtide.verify`: the same bits as plain PyTorch, shown on your model and your machine."""

from __future__ import annotations

import copy
import gc
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lowtide.api.verify.compared_steps import compared
from lowtide.api.verify.taking_steps import Beforehand, LossFn, Subject, take
from lowtide.device.generator_guard import unchanged_generators
from lowtide.device.optimizer_hooks import is_table_of_hooks
from lowtide.device.storage import number_of_storage
from lowtide.errors import LowtideError, VerificationError
from lowtide.ir.numerics import Numerics, parse_numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.planners.base import Watch
from lowtide.results.plan import Plan
from lowtide.results.verification import Taken, Task, Verification
from lowtide.session.budget_scope import Scope
from lowtide.session.live_optimizer import why_opaque
from lowtide.session.member import check_optimizer
from lowtide.session.options import HostBudget, Rate
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
    return verified(subject, planned, parse_numerics(numerics), steps)


def verified(
    subject: Subject,
    planned: Mapping[str, Any],
    numerics: Numerics,
    steps: int,
    known: Beforehand | None = None,
) -> Verification:
    """Compares steps of copies of a model; see `verify`.

    Arguments:
        planned: keyword arguments of `lowtide.fit`.
        known: to a planned step when it begins.
    """

    def with_a_copy(task: Task) -> Taken:
        with unchanged_generators():
            try:
                return take(copied(subject), task, planned, known)
            finally:
                gc.collect()  # a copy and its compiled call refer to each other

    with tempfile.TemporaryDirectory(prefix="lowtide-verify-") as folder:
        return compared(with_a_copy, numerics, steps, Path(folder))


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
    if subject.recipe is not None and optimizer is not None and subject.optimizer is not None:
        reason = why_opaque(subject.optimizer)
        if reason != why_opaque(optimizer):
            raise VerificationError(
                f"this step cannot be verified: a copy of the optimizer steps otherwise ({reason})."
            )
    if _layout(subject.model) != _layout(model):
        raise VerificationError(_NO_COPY.format("a copy of its parameters and buffers lies otherwise in memory"))
    return Subject(model, args, kwargs, optimizer, loss_fn, subject.gradient_layouts, subject.recipe)


_NO_COPY = (
    "steps are verified with copies of the model, and of this one there is none: {}. Type `lowtide verify "
    "FILE.py:FUNCTION`, which has your function make the model anew for every step, in a process of its own."
)


def _copied_optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """A copy of an optimizer without hooks, and without what others have put over its methods."""
    made = type(optimizer).__new__(type(optimizer))
    memo[id(optimizer)] = made
    for name, value in vars(optimizer).items():
        if is_table_of_hooks(name):
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
        own = storages.setdefault(number_of_storage(tensor), len(storages))
        found.append((name, tensor.shape, tensor.stride(), own))
    return found


def _named(model: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
