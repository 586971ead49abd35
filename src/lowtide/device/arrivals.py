"""Which gradients autograd really has for a captured backward, before it makes zeros of those that it has not."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch

_NODE = "CompiledFunctionBackward"
_HERE = threading.local()  # `came`: what the node that runs next on this thread was given


def watch(results: Iterable[Any]) -> None:
    """Looks at what the autograd node of a captured graph will be given, whenever its backward runs.

    Arguments:
        results: what the graph returned; views of its outputs lead to it as well.
    """
    for result in results:
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and node.name() != _NODE:
            node = node.next_functions[0][0] if node.next_functions else None
        if node is not None and node.name() == _NODE:
            node.register_prehook(_note)
            return


def take() -> tuple[bool, ...] | None:
    """Per gradient that the running backward was given, whether there is one; None if nobody watched."""
    came: tuple[bool, ...] | None = getattr(_HERE, "came", None)
    _HERE.came = None
    return came


def _note(gradients: tuple[torch.Tensor | None, ...]) -> None:
    _HERE.came = tuple(g is not None for g in gradients)
