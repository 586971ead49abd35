"""Modes that see operators or functions before they run: written, and switched off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def no_function_modes() -> Iterator[None]:
    """Inside, no mode changes what functions do; `torch.device` as a context is one, and Dynamo breaks graphs in it."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)
