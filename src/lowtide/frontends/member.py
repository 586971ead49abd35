"""A model that trains under a budget, with the optimizer that trains it; several may share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Member:
    """What counts under a budget beside the steps themselves.

    Arguments:
        tensors: gives the model's parameters and buffers, while it lives.
        optimizer: gives the one whose state and temporaries count, while it lives; None if there is none.
    """

    tensors: Callable[[], Iterable[torch.Tensor]] = tuple
    optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None


def tensors_of(members: Iterable[Member]) -> tuple[torch.Tensor, ...]:
    """Parameters and buffers of all of them, each tensor once."""
    found = {id(t): t for m in members for t in m.tensors()}
    return tuple(found.values())


def optimizers_of(members: Iterable[Member]) -> list[torch.optim.Optimizer]:
    """Their optimizers, each once."""
    found = (m.optimizer() for m in members)
    return list({id(o): o for o in found if o is not None}.values())
