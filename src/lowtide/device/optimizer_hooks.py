"""Hooks of an optimizer's step, its own and those of all optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks are registered for the steps of an optimizer, or of all optimizers."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own) or has_global_optimizer_hooks()


def is_table_of_hooks(name: str) -> bool:
    """Whether an attribute of an optimizer holds hooks: of steps, or of saving and loading its state."""
    return name.startswith("_optimizer_") and name.endswith("_hooks")


def is_wrapped_by_scheduler(step: object) -> bool:
    """Whether a `step` that an optimizer has beside its class's was put there by a scheduler, which counts calls."""
    return hasattr(step, "_wrapped_by_lr_sched")


def has_global_optimizer_hooks() -> bool:
    """Whether hooks are registered for the steps of all optimizers."""
    from torch.optim import optimizer

    return bool(optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks)


@contextlib.contextmanager
def without_optimizer_hooks() -> Iterator[None]:
    """Keeps the hooks that are registered for the steps of all optimizers from being called."""
    from torch.optim import optimizer

    before, after = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
    kept_before, kept_after = dict(before), dict(after)
    try:
        before.clear()
        after.clear()
        yield
    finally:
        before.update(kept_before)
        after.update(kept_after)
