"""While a model is captured, what it overwrites in place keeps the layout of what was there.

Capture makes operators in place into ones that return a new tensor. Where the overwritten tensor has gaps between its
rows (a slice that enters a graph from outside, one of `torch.unsafe_chunk`), the new one has none, and a kernel that
reads it rounds otherwise wherever its vectors end elsewhere. Slices that a graph takes itself are no such case: torch
writes them back into the whole and reads them from there. So a result that is laid out otherwise than the tensor whose
place it takes is copied into one that is laid out alike; and so is the copy that capture makes of an argument which is
overwritten and has gradients.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lowtide.device.strides import dense_strides, hint_of, order_of
from lowtide.device.trees import leaves_of

_LIBRARY = torch.library.Library("lowtide", "FRAGMENT")  # type: ignore[no-untyped-call]


def _laid_out(given: torch.Tensor, strides: Sequence[int] | None = None) -> torch.Tensor:
    strides = given.stride() if strides is None else strides
    return torch.empty_strided(given.shape, strides, dtype=given.dtype, device=given.device).copy_(given)


_LIBRARY.define("laid_out(Tensor given, SymInt[]? strides=None) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("laid_out", _laid_out, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

LAID_OUT = torch.ops.lowtide.laid_out.default
"""A copy with the strides of the original, or others, gaps between rows among them; `clone` would leave those out."""


def copy_with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is laid out as a tensor is, with its gaps, so that kernels round what they make of it alike."""
    return _laid_out(tensor.detach()) if has_gaps(tensor) else tensor.detach().clone()


def has_gaps(tensor: torch.Tensor) -> bool:
    """Tells whether a copy by `clone` would lie otherwise; False where elements share their place."""
    if tensor.layout is not torch.strided or _overlaps(tensor):
        return False
    strides = tuple(hint_of(s) or 0 for s in tensor.stride())
    sizes = tuple(hint_of(n) or 0 for n in tensor.shape)
    dense = dense_strides(sizes, order_of(sizes, strides))
    return any(n > 1 and s != d for n, s, d in zip(sizes, strides, dense, strict=True))


@functools.cache
def keep_layouts_in_place(is_wanted: Callable[[], bool]) -> None:
    """Puts a function in the place of functionalisation's, for good.

    Arguments:
        is_wanted: tells whether a capture of ours runs on this thread; elsewhere all is as before.
    """
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    plain = FunctionalTensorMode.__torch_dispatch__

    @functools.wraps(plain)
    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_wanted() or not _overwrites(func):
            return plain(mode, func, types, args, kwargs)
        before = [(tensor, _layout(tensor)) for tensor in _overwritten(func, args, kwargs or {})]
        result = plain(mode, func, types, args, kwargs)
        for tensor, layout in before:
            if layout is not None:
                _restore(tensor, *layout)
        return result

    FunctionalTensorMode.__torch_dispatch__ = dispatch  # type: ignore[method-assign, assignment]
    _keep_layouts_of_copies(is_wanted)


def copies_of_arguments() -> Any:
    """The module of torch in which `maybe_to_fresh_input` copies the arguments that a captured graph overwrites."""
    users = importlib.import_module("torch._functorch._aot_autograd.graph_capture_wrappers")
    if not hasattr(users, "maybe_to_fresh_input"):
        raise AttributeError("maybe_to_fresh_input")
    return users


def _keep_layouts_of_copies(is_wanted: Callable[[], bool]) -> None:
    users = copies_of_arguments()
    plain = users.maybe_to_fresh_input

    @functools.wraps(plain)
    def fresh(idx: int, t: Any, meta: Any) -> Any:
        if not is_wanted() or not isinstance(t, torch.Tensor) or not has_gaps(t):
            return plain(idx, t, meta)
        made = plain(idx, t, meta)
        is_copy = made is not t and not made._is_view()
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t) if is_copy else made

    users.maybe_to_fresh_input = fresh


_REPLACING = ("set_", "resize_", "resize_as_")


@functools.cache
def _overwrites(func: Any) -> bool:
    """Tells whether an operator writes into tensors; those that give a tensor another layout, such as `t_`, do not."""
    if not isinstance(func, torch._ops.OpOverload) or not func._schema.is_mutable:
        return False
    return torch.Tag.inplace_view not in func.tags and func.overloadpacket.__name__ not in _REPLACING


def _overwritten(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The tensors that a call overwrites, as functionalisation holds them."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in leaves_of(given) if isinstance(leaf, FunctionalTensor))


def _value(tensor: Any) -> torch.Tensor:
    torch._functionalize_sync(tensor.elem)
    return torch._from_functional_tensor(tensor.elem)


def _layout(tensor: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Sizes and strides; None where they are not known, or where elements share their place."""
    value = _value(tensor)
    if value.layout is not torch.strided:
        return None
    return None if _overlaps(value) else (tuple(value.shape), tuple(value.stride()))


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tells whether elements may share their place; True as well where sizes are known only when the model runs."""
    known = [(hint_of(n), hint_of(s)) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return any(n is None or s is None or (s == 0 and n > 1) for n, s in known)


def _restore(tensor: Any, sizes: tuple[Any, ...], strides: tuple[Any, ...]) -> None:
    """Gives what was written into a tensor the tensor's own layout again."""
    value = _value(tensor)
    hints = [hint_of(n) for n in sizes]
    if value.layout is not torch.strided or [hint_of(n) for n in value.shape] != hints:
        return
    steps = zip(hints, map(hint_of, value.stride()), map(hint_of, strides), strict=True)
    if all(now == before for n, now, before in steps if n != 1) or 0 in hints:
        return
    torch._functionalize_replace(tensor.elem, LAID_OUT(value, strides))
    torch._functionalize_commit_update(tensor.elem)
    torch._functionalize_sync(tensor.elem)
