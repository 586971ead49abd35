"""How the gradients that a captured backward is given lie in memory, which AOTAutograd takes into its own hands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class _Anything:
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@contextlib.contextmanager
def gradients_without_holes() -> Iterator[None]:
    """Lets the backward expect contiguous gradients of outputs that are parts of larger tensors, or transposed ones.

    AOTAutograd takes a gradient to lie as its output does. The gradient of a slice is no slice of anything: it would
    be copied into one, with all the holes, before every backward. What is computed of a transposed output is mostly
    contiguous, and so is its gradient: some kernels round otherwise over a layout that eager does not have.
    """
    try:
        from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
    except ImportError:  # up to torch 2.5 every gradient is made contiguous
        yield
        return
    plain = MemoryFormatMeta.from_tensor

    def from_tensor(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if t.layout is torch.strided and not t._has_symbolic_sizes_strides and not _is_common(t):
            with torch._functorch.config.patch(guess_tangent_strides_as_outputs=False):
                return plain(t, *args, **kwargs)
        return plain(t, *args, **kwargs)

    MemoryFormatMeta.from_tensor = staticmethod(from_tensor)  # type: ignore[method-assign]
    try:
        yield
    finally:
        MemoryFormatMeta.from_tensor = staticmethod(plain)  # type: ignore[method-assign]


def _is_common(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is contiguous, or has its channels last, as convolutions pass it on."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(tensor.dim())
    return tensor.is_contiguous() or (last is not None and tensor.is_contiguous(memory_format=last))


def take_gradients_as_they_come() -> bool:
    """While a forward is compiled: keeps AOTAutograd from copying gradients that lie otherwise than it expects.

    Returns: whether that is so for all; not for gradients that are subclasses of tensors.
    """
    context = torch._guards.TracingContext.try_get()
    metas = getattr(getattr(context, "fw_metadata", None), "subclass_tangent_meta", None) or ()
    for meta in metas:
        layout: Any = getattr(meta, "memory_format", None)
        if type(meta).__name__ != "PlainTensorMeta" or layout is None:
            return False
        meta.memory_format = type(layout)(size=_Anything(), stride=_Anything())
    return bool(metas)
