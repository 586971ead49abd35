"""Geometries of results where torch's own rules for them refuse what the real operators do.

While a graph is traced, torch works out the sizes of every result without computing it. Some of those rules are
narrower than the kernels of a processor: `_grouped_mm` of float32, for one. Inside a capture of ours the geometry then
comes from a rule of ours, or else from the operator itself, run once on zeros where they are small enough.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lowtide.device.dispatch_modes import no_modes
from lowtide.device.trees import mapped_tensors, tensors_in

_THREAD = threading.local()  # `learns`: whether a capture of ours runs on this thread
_MOST_B = 64 << 20  # of all arguments together, for an operator that is run once
_ROW_B = 16  # rows of what `_grouped_mm` returns begin at multiples of that


@contextlib.contextmanager
def geometries_learnt() -> Iterator[None]:
    """Inside, an operator that works is traced, though torch's rule for the geometry of its results refuses it."""
    _install()
    before = getattr(_THREAD, "learns", False)
    _THREAD.learns = True
    try:
        yield
    finally:
        _THREAD.learns = before


@functools.cache
def _install() -> None:
    """Puts a function in the place of torch's, for good; outside our captures it does as before."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain: Callable[..., Any] = FakeTensorMode._dispatch_impl

    def dispatch(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not getattr(_THREAD, "learns", False):
            return plain(self, func, types, args, kwargs)
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype in (torch.float32, torch.float16):
            with self:
                return _grouped_mm(*args, **kwargs)
        try:
            return plain(self, func, types, args, kwargs)
        except (RuntimeError, ValueError, IndexError) as refusal:
            learnt = _learnt(self, func, args, kwargs, refusal)
            if learnt is None:
                raise
            return learnt

    FakeTensorMode._dispatch_impl = dispatch  # type: ignore[method-assign]


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A tensor of the geometry of the operator's result: products of groups of rows, or of columns."""
    rows, columns = mat_a.size(-2), mat_b.size(-1)
    groups: list[Any] = []
    if mat_a.dim() == mat_b.dim():
        if mat_a.dim() == 2:
            assert offs is not None, "two matrices are cut into groups by their offsets"
        groups = [offs.size(0) if mat_a.dim() == 2 and offs is not None else mat_a.size(0)]
    dtype = out_dtype or mat_a.dtype
    step = max(1, _ROW_B // dtype.itemsize)
    width = (columns + step - 1) // step * step
    strides = [rows * width, width, 1] if groups else [width, 1]
    return torch.empty_strided([*groups, rows, columns], strides, dtype=dtype, device=mat_a.device)


def _learnt(mode: Any, func: Any, args: Any, kwargs: Any, refusal: Exception) -> Any:
    """What the operator itself returns for zeros, as fake tensors; None where that says nothing."""
    from torch._subclasses import fake_tensor

    raised_on_purpose = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
        fake_tensor.UnsupportedOperatorException,
        fake_tensor.MetadataMismatchError,
    )
    if isinstance(refusal, raised_on_purpose) or not isinstance(func, torch._ops.OpOverload):
        return None
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
    if func.namespace != "aten" or func._schema.is_mutable or func.is_view or tags & set(func.tags):
        return None
    tensors = tensors_in((args, kwargs))
    if not tensors or not all(_can_be_made(x) for x in tensors):
        return None
    if sum(x.numel() * x.element_size() for x in tensors) > _MOST_B:
        return None
    try:
        with no_modes(), torch.no_grad():
            made = mapped_tensors(_zeros, (args, dict(kwargs or {})))
            results = func(*made[0], **made[1])
    except Exception:  # the operator refuses it, too: then torch's own refusal is the better message
        return None
    with mode:
        return mapped_tensors(_like, results)


def _can_be_made(x: torch.Tensor) -> bool:
    sizes = (*x.shape, *x.stride()) if x.layout is torch.strided else (None,)
    return x.device.type == "cpu" and all(type(n) is int for n in sizes)


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype).zero_()


def _like(result: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(result.shape), result.stride(), dtype=result.dtype, device=result.device)
