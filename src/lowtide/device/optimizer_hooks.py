"""Hooks of an optimizer's step, its own and those of all optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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
