"""Whole steps to compare: the loop that people write, and the same as one plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.api.train_step import TrainStep, set_host_resident
from lowtide.errors import BudgetWarning
from lowtide.session.objective import Objective

Look = Callable[[Iterable[tuple[str, torch.Tensor]]], None]


@dataclass(frozen=True)
class Recipe:
    """How a whole step uses a batch's gradients.

    Arguments:
        clip_norm, norm_type: of all gradients together; None where nothing is clipped.
        accumulate: how many calls make one step.
        host_resident: what lives on the host by an earlier plan: the parameter's place in the objective, and the name.
    """

    clip_norm: float | None = None
    norm_type: float = 2.0
    accumulate: int = 1
    host_resident: frozenset[tuple[int, str]] | None = None


def plain_step(
    objective: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    call: Callable[[], torch.Tensor],
    recipe: Recipe,
    look: Look,
    backward_begins: Callable[[], None],
) -> None:
    """Takes a step as a plain loop takes it.

    Arguments:
        call: gives the loss of the batch.
        look: is shown what comes out on the way.
        backward_begins: is called before every backward.
    """
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for number in range(recipe.accumulate):
        with torch.enable_grad():
            loss = call()
        backward_begins()
        with torch.autocast(loss.device.type, enabled=False):
            loss.backward()  # type: ignore[no-untyped-call]
        look([(f"output: loss of call {number + 1}", loss.detach())])
        del loss
    if recipe.clip_norm is not None:
        trained = [p for p in objective.parameters() if id(p) in stepped]
        norm = torch.nn.utils.clip_grad_norm_(trained, recipe.clip_norm, recipe.norm_type)
        look([("gradient norm", norm)])
    optimizer.step()
    optimizer.zero_grad()


def planned_step(step: TrainStep, args: tuple[Any, ...], kwargs: dict[str, Any], recipe: Recipe, look: Look) -> None:
    """Takes the same step as one plan."""
    for number in range(recipe.accumulate):
        look([(f"output: loss of call {number + 1}", step(*args, **kwargs))])
    if recipe.clip_norm is not None and step.total_norm is not None:
        look([("gradient norm", step.total_norm)])


def planned(
    objective: Objective, optimizer: torch.optim.Optimizer, recipe: Recipe, options: Mapping[str, Any]
) -> TrainStep:
    """Whole steps inside a budget.

    Arguments:
        options: further keyword arguments of `TrainStep`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # about the optimizer, which has been said of the user's
        step = TrainStep(
            objective.model,
            objective.loss,
            optimizer,
            targets=objective.targets,
            autocast=objective.autocast,
            clip_norm=recipe.clip_norm,
            norm_type=recipe.norm_type,
            accumulate=recipe.accumulate,
            **options,
        )
    set_host_resident(step, recipe.host_resident)
    return step
