"""Modes that see operators or functions before they run: written, and switched off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which `__torch_dispatch__` is called in the place of every operator that runs below autograd."""


def no_modes() -> contextlib.AbstractContextManager[object]:
    """Inside, no mode sees operators or functions: what is called runs as it is."""
    return _disable_current_modes()


@contextlib.contextmanager
def no_function_modes() -> Iterator[None]:
    """Inside, no mode changes what functions do; `torch.device` as a context is one, and Dynamo breaks graphs in it."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)
