"""One real training step inside a budget, after which the model, its optimizer and all generators are as before.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from lowtide.api.fit import fit, unfit
from lowtide.api.memory import memory_stats
from lowtide.device import storage as storage_surgery
from lowtide.device.arena import Arena, nothing_engaged
from lowtide.device.generator_guard import unchanged_generators
from lowtide.device.trees import tensors_in
from lowtide.errors import CaptureError, InfeasibleBudget
from lowtide.ir.plan import PlanRecord
from lowtide.runtime.persistent_storages import state_tensors
from lowtide.session.budget_scope import Scope
from lowtide.session.handle import Fitted
from lowtide.session.inputs import Inputs
from lowtide.units import Budget, format_B

LossOf = Callable[[Any], torch.Tensor]


def try_step(
    model: torch.nn.Module,
    inputs: Inputs,
    budget: Budget,
    *,
    optimizer: torch.optim.Optimizer | None,
    loss: LossOf | None,
    scope: Scope,
    **options: Any,
) -> PlanRecord:
    """Fits a model, takes one step (forward, backward, the optimizer's), and makes it a plain one again.

    Arguments:
        model: plain; optimizer: stepped if it is given and there is a backward.
        loss: the loss of what the model returns; see `begin_backward`.
        options: as for `fit`.

    Returns: the plan that ran.

    Raises:
        InfeasibleBudget: if there is no plan, or the step needed more than the budget.
        torch.OutOfMemoryError: if something did not fit.
        Exception: what the user's code raises. Also then, and on Ctrl-C, everything is as before.
    """
    with _unchanged(model, optimizer):
        fit(model, budget, optimizer=optimizer, scope=scope, **options)
        outputs = model(*inputs[0], **inputs[1])
        trained = begin_backward(outputs, loss)
        del outputs
        if trained and optimizer is not None:
            optimizer.step()
        plan = _handle(model).plan
        assert plan is not None, "a step has run"
        seen = memory_stats(model)
        if seen.spills or seen.reserved_B > seen.budget_B:
            beyond_B = seen.spilled_B or seen.reserved_B - seen.budget_B
            raise InfeasibleBudget(
                f"a step ran, and took {format_B(beyond_B)} outside the budget",
                budget_B=seen.budget_B,
                smallest_B=seen.budget_B + beyond_B,
            )
        return plan.record


def begin_backward(outputs: Any, loss: LossOf | None) -> bool:
    """Runs the backward of what a model returned.

    Arguments:
        outputs: nested as it is.
        loss: computes the loss of it. Without one: `outputs.loss`, `outputs["loss"]`, or its only differentiable
            tensor if that has one element; else every differentiable output is given a gradient of ones.

    Returns: whether there was anything to differentiate.

    Raises:
        CaptureError: if the loss is no number that can be differentiated.
    """
    if loss is not None:
        found = loss(outputs)
        if not isinstance(found, torch.Tensor) or found.numel() != 1 or not found.requires_grad:
            raise CaptureError("loss= has to return a tensor of one element that depends on the model's parameters")
        found.backward()  # type: ignore[no-untyped-call]
        return True
    named = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    tensors = [named] if isinstance(named, torch.Tensor) else tensors_in(outputs)
    tensors = [t for t in tensors if t.requires_grad]
    if tensors:
        torch.autograd.backward(tensors, [torch.ones_like(t) for t in tensors])
    return bool(tensors)


def _handle(model: torch.nn.Module) -> Fitted:
    handle = model.lowtide
    assert isinstance(handle, Fitted), "fit puts it there"
    return handle


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Restores contents, gradients, the optimizer's state and options, and generators, and takes all out of the arena.

    Attributes that the model's own Python code sets in a forward stay as it left them.
    """
    tensors = [*model.parameters(), *model.buffers()]
    gradients = [(p, p.grad) for p in model.parameters()]
    contents = [(t, t.detach().clone()) for t in tensors]
    options = None if optimizer is None else _Kept(optimizer)
    try:
        with unchanged_generators():
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    finally:
        with nothing_engaged():
            for parameter, gradient in gradients:
                parameter.grad = gradient
            if options is not None:
                options.restore()
            hard_budget = _handle(model).session.budget_scope.hard_budget if hasattr(model, "lowtide") else None
            unfit(model)
            if hard_budget is not None:
                _move_out([*tensors, *(() if optimizer is None else state_tensors(optimizer))], hard_budget.arena)
            for tensor, content in contents:
                tensor.data.copy_(content)  # counts no version, as nothing has changed


def _move_out(tensors: list[torch.Tensor], arena: Arena) -> None:
    """Copies tensors to torch's own memory, so that the arena can end."""
    for tensor in tensors:
        if tensor.device.type == arena.device and tensor.layout is torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            if storage_surgery.place_of(storage, arena) is not None:
                storage_surgery.relocate(storage, None)


class _Kept:
    """An optimizer's state, options and attributes, by reference, with the contents of their tensors."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = [(key, entry, _copied(entry)) for key, entry in optimizer.state.items()]
        self._groups = [(group, dict(group)) for group in optimizer.param_groups]
        self._attributes = dict(vars(optimizer))
        numbers = [option for _, group in self._groups for option in group.values() if isinstance(option, torch.Tensor)]
        self._contents = [(t, t.detach().clone()) for t in (*state_tensors(optimizer), *numbers)]

    def restore(self) -> None:
        """Puts everything back, the same objects in the same places."""
        state = self._optimizer.state
        vars(self._optimizer).clear()
        vars(self._optimizer).update(self._attributes)
        state.clear()
        for key, entry, copied in self._state:
            if isinstance(entry, dict):
                entry.clear()
                entry.update(copied)
            state[key] = entry
        for group, options in self._groups:
            group.clear()
            group.update(options)
        for tensor, content in self._contents:
            tensor.data.copy_(content)


def _copied(entry: Any) -> Any:
    return dict(entry) if isinstance(entry, dict) else entry
