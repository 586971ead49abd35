"""Tensors with a geometry and a device but no bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def detect_fake_mode(examples: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """The fake mode that made the given fake tensors, to make one more."""
    mode = torch._guards.detect_fake_mode(examples)
    return mode if mode is not None else contextlib.nullcontext()


def fake_mode() -> contextlib.AbstractContextManager[Any]:
    """A mode in which tensors have a geometry and a device but no bytes; it never runs a kernel to learn a shape."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_fallback_kernels=False)


def fake_tensor() -> type[torch.Tensor]:
    """What a fake mode makes."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def no_value_error() -> type[Exception]:
    """What a fake tensor raises when its contents are asked for."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    return DataDependentOutputException


def no_fake_kernel_error() -> type[Exception]:
    """What a fake mode raises for an operator whose results it cannot foretell."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    return UnsupportedOperatorException


@contextlib.contextmanager
def optimizers_take_fakes_for_real() -> Iterator[None]:
    """Lets optimizers choose between loop, foreach and fused on fake parameters as they do on real ones."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer

    plain = optimizer._foreach_supported_types
    optimizer._foreach_supported_types = [*plain, FakeTensor]
    try:
        yield
    finally:
        optimizer._foreach_supported_types = plain
