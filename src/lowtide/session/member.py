"""A model that trains under a budget, with the optimizer that trains it; several may share one."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from lowtide.arguments import shown
from lowtide.device.process_groups import bucket_B
from lowtide.device.storage import is_made_of_others
from lowtide.errors import ArgumentError, BudgetWarning, OptimizerError


@dataclass(frozen=True, eq=False)
class Member:
    """A model and its optimizer, which count under a budget whether or not a step uses them.

    Arguments:
        tensors: gives the model's parameters and buffers, while it lives.
        optimizer: gives the one whose state and temporaries count, while it lives; None if there is none.
        updates_B: gives the bytes that stepping parameters one by one takes, behind a step whose plan has no updates.
        buckets_B: bytes of the buckets in which DistributedDataParallel reduces gradients; they lie outside the arena.
    """

    tensors: Callable[[], Iterable[torch.Tensor]] = tuple
    optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
    updates_B: Callable[[], int] = lambda: 0
    buckets_B: int = 0


def member_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Member:
    """A model and its optimizer, named weakly: torch keeps compiled code, and what it refers to, for good.

    Raises:
        ArgumentError: if the model is none that can be captured.
        OptimizerError: if the optimizer is none, or keeps its state where lowtide cannot place it.
    """
    check_model(model)
    alive = weakref.ref(model)

    def tensors() -> tuple[torch.Tensor, ...]:
        found = alive()
        return () if found is None else (*found.parameters(), *found.buffers())

    if optimizer is None:
        return Member(tensors, buckets_B=bucket_B(model))
    check_optimizer(optimizer)
    optimizer = innermost(optimizer)
    if type(optimizer).__module__.startswith("torchao."):
        raise OptimizerError(
            f"{type(optimizer).__name__} of torchao keeps its state in tensors made of others, whose bytes lowtide "
            "cannot place, and compiles its own step: leave optimizer= out (its state is then outside the budget), or "
            "use bitsandbytes' 8-bit optimizers, whose state counts"
        )
    mine = {id(p) for p in model.parameters()}
    if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
        warnings.warn(
            "the optimizer steps no parameter of this model: its state is counted, and the one that trains the model "
            "is outside the budget. Pass that one.",
            BudgetWarning,
            stacklevel=3,
        )
    return Member(tensors, weakref.ref(optimizer), buckets_B=bucket_B(model))


def check_module(model: object) -> torch.nn.Module:
    """A model, if it is one.

    Raises:
        ArgumentError: if it is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model={shown(model)} is no torch.nn.Module: {_instead_of(model)}")
    return model


def check_model(model: object) -> None:
    """Refuses what is no module, and modules whose parameters lowtide cannot place.

    Raises:
        ArgumentError: then.
    """
    module = check_module(model)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise ArgumentError(
                f"{name} of the model has no shape yet: call the model with a batch once, as in model(x), before it is "
                "given to lowtide"
            )
        if is_made_of_others(tensor):
            kind = type(tensor.data if type(tensor) is torch.nn.Parameter else tensor).__name__
            raise ArgumentError(
                f"{name} of the model is a {kind}, a tensor made of others (as fully_shard, tensor parallelism or "
                "quantization make them), whose bytes lowtide cannot place: give lowtide the model before it is "
                "sharded or quantized, train it in DistributedDataParallel, or train it inside lowtide.eager"
            )


def _instead_of(model: object) -> str:
    if isinstance(model, type):
        return f"it is a class, so make a model of it first, as in {model.__name__}(...)"
    if callable(model):
        return (
            'pass the module that has the parameters, or compile the function with torch.compile(f, backend="lowtide", '
            'options={"budget": "6GiB"})'
        )
    return 'pass the model that is trained, as in lowtide.fit(model, budget="6GiB")'


def check_optimizer(optimizer: object) -> None:
    """Refuses what is none.

    Raises:
        OptimizerError: then.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) and not isinstance(
        getattr(optimizer, "optimizer", None), torch.optim.Optimizer
    ):
        raise OptimizerError(
            f"optimizer={optimizer!r:.60} is no torch.optim.Optimizer: pass the object whose step() trains the model"
        )


def innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that steps, inside the wrappers that Accelerate and Lightning put around it.

    Arguments:
        optimizer: wrapped or not; a wrapper names the one inside `.optimizer`.
    """
    while isinstance(inside := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inside
    return optimizer


def tensors_of(members: Iterable[Member]) -> tuple[torch.Tensor, ...]:
    """Parameters and buffers of all of them, each tensor once."""
    found = {id(t): t for m in members for t in m.tensors()}
    return tuple(found.values())


def optimizers_of(members: Iterable[Member]) -> list[torch.optim.Optimizer]:
    """Their optimizers, each once."""
    found = (m.optimizer() for m in members)
    return list({id(o): o for o in found if o is not None}.values())
