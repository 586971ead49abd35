"""Where a `torch.nn.Module` keeps its tensors, what it is called by, and the hooks of all of them."""

from __future__ import annotations

from typing import Any


def hooks_of_all_modules() -> tuple[Any, ...]:
    """The hooks that are called for every module of the process, in order."""
    from torch.nn.modules import module

    return tuple(
        hook
        for kind in (
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
        )
        for hook in kind.values()
    )
