"""Where a `torch.nn.Module` keeps its tensors, what it is called by, and the hooks of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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


def plain_call(module: torch.nn.Module) -> Callable[..., Any]:
    """What a module does when it is called, hooks included, whatever `replace_call` has put in its place."""
    return module._call_impl


def replaced_call(module: torch.nn.Module) -> Callable[..., Any] | None:
    """What stands in the place of a module's own call: `replace_call` or `module.compile()` has put it there."""
    found: Callable[..., Any] | None = getattr(module, "_compiled_call_impl", None)
    return found


def replace_call(module: torch.nn.Module, call: Callable[..., Any] | None) -> None:
    """Has a module do something else when it is called, hooks included; None: what it does by itself."""
    module._compiled_call_impl = call


def tensor_tables(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """The dictionaries in which a module keeps parameters, buffers and plain attributes, by name; to be written to."""
    return module._parameters, module._buffers, vars(module)
