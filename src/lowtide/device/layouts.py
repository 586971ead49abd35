"""While a model is captured, results lie in memory as the real operators lay them out.

Capture runs on fake tensors, whose strides come from a second description of every operator. Where that description
is wrong (batch norm of a transposed input, say), the captured program is not the one that eager runs: a `reshape` is
taken for a view that is none, or a copy is left out. So each operator that a capture meets with a layout not met
before runs once for real, on made-up contents, and the fake result takes over the strides that came out.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lowtide.device.arena import nothing_engaged
from lowtide.device.dispatch_modes import no_function_modes, no_modes
from lowtide.device.fake_tensors import fake_tensor
from lowtide.device.generator_guard import unchanged_generators
from lowtide.device.in_place_layouts import keep_layouts_in_place
from lowtide.device.strides import dense_strides, hint_of, order_of
from lowtide.device.trees import filled, flattened, tensors_in

_LOG = logging.getLogger("lowtide")
_THREAD = threading.local()  # `depth`: captures of ours that run on this thread; `trying`: an operator is being tried
_TRIED: OrderedDict[Any, tuple[tuple[int, ...] | None, ...] | None] = OrderedDict()  # by call: strides of its results
_MOST_TRIED = 1 << 14
_LARGE_B = 64 * 2**20  # a call that would take more is tried on fewer elements
_SMALL = 16  # sizes up to here are kept then: kernels, strides, heads
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# Their results have a layout of their own, or their inputs contents that cannot be made up.
_UNTRIED_TAGS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_PACKED = ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn")


@contextlib.contextmanager
def real_layouts() -> Iterator[None]:
    """Inside, fake results on this thread have the strides of real ones."""
    _install()
    depth = getattr(_THREAD, "depth", 0)
    _THREAD.depth = depth + 1
    try:
        yield
    finally:
        _THREAD.depth = depth


@functools.cache
def _install() -> None:
    """Lets fake tensors pass through here, for good; outside our captures all is as before."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    keep_layouts_in_place(lambda: bool(getattr(_THREAD, "depth", 0)))
    plain = FakeTensorMode.dispatch

    @functools.wraps(plain)
    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = plain(mode, func, types, args, kwargs or {})
        if not getattr(_THREAD, "depth", 0) or getattr(_THREAD, "trying", False) or not _may_be_tried(func):
            return result
        return _as_real(mode, func, args, kwargs or {}, result)

    FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign, assignment]


@functools.cache
def _may_be_tried(func: Any) -> bool:
    """Tells whether an operator makes fresh results; what it overwrites of made-up arguments is nobody's."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    schema = func._schema
    aliases = any(r.alias_info is not None for r in schema.returns)
    tensors = any("Tensor" in str(r.type) for r in schema.returns)
    odd = any(tag in func.tags for tag in _UNTRIED_TAGS) or any(name in str(func) for name in _PACKED)
    return tensors and not (aliases or odd)


def _as_real(mode: Any, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """A call's fake result, laid out as the real one."""
    fakes = tensors_in(result)
    if not any(_is_ambiguous(t) for t in fakes):
        return result
    leaves, form = flattened((args, kwargs))
    known = [_described(leaf) for leaf in leaves]
    if any(k is None for k in known) or not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return result
    key = (func, form, tuple(known))
    if key not in _TRIED:
        while len(_TRIED) >= _MOST_TRIED:
            _TRIED.popitem(last=False)
        _TRIED[key] = _try(func, leaves, form, fakes)
    strides = _TRIED[key]
    if strides is None:
        return result
    return _laid_out(mode, result, strides)


def _is_ambiguous(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor's elements could lie in more than one order."""
    return tensor.layout is torch.strided and sum(1 for n in _hints(tensor.shape) or () if n > 1) > 1


def _hints(numbers: Sequence[Any]) -> tuple[int, ...] | None:
    """Sizes as numbers; None where one is known only when the model runs."""
    found = [hint_of(n) for n in numbers]
    return None if any(n is None for n in found) else tuple(int(n) for n in found)  # type: ignore[arg-type]


def _described(leaf: Any) -> Any:
    """An argument as part of a key; None where it cannot be made up."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or not isinstance(leaf, fake_tensor()):
            return None
        shape, strides = _hints(leaf.shape), _hints(leaf.stride())
        if shape is None or strides is None or leaf.device.type == "meta":
            return None
        return (shape, strides, leaf.dtype, leaf.device)
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        hint = getattr(leaf.node, "hint", None)
        return None if hint is None else ("number", hint)
    return (type(leaf), leaf) if isinstance(leaf, _PLAIN) else None


def _try(
    func: Any, leaves: Sequence[Any], form: Any, fakes: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...] | None, ...] | None:
    """Runs a call for real.

    Returns: per result, the positions of its dimensions from the largest stride to the smallest, where the fake one
        is laid out otherwise; None where all are as the fake ones say, or where the call cannot be tried.
    """
    taken_B = sum(math.prod(_hints(t.shape) or ()) * t.itemsize for t in (*fakes, *_tensors(leaves)))
    smaller = _smaller((*fakes, *_tensors(leaves))) if taken_B > _LARGE_B else {}
    _THREAD.trying = True
    try:
        with (
            unchanged_generators(),
            nothing_engaged(),
            no_modes(),
            no_function_modes(),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            args, kwargs = filled(form, [_made_up(leaf, smaller) for leaf in leaves])
            real = tensors_in(func(*args, **kwargs))
            orders = tuple(map(_order_unless_alike, real, fakes)) if len(real) == len(fakes) else ()
    except Exception as error:  # made-up contents, or sizes that do not go together: nothing is learnt
        _LOG.debug("%s cannot be tried alone: %s", func, error)
        return None
    finally:
        _THREAD.trying = False
    if not any(orders):
        return None
    _LOG.info("%s: its results are laid out otherwise than torch's own capture takes them to be", func)
    return orders


def _tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _smaller(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """A small size for every large one: different ones stay different, equal ones equal."""
    sizes = sorted({n for t in tensors for n in _hints(t.shape) or () if n > _SMALL})
    return {n: _SMALL + 1 + place for place, n in enumerate(sizes)}


def _made_up(leaf: Any, smaller: dict[int, int]) -> Any:
    """A real argument in the place of a fake one, with contents that operators accept."""
    if not isinstance(leaf, torch.Tensor):
        hint = getattr(getattr(leaf, "node", None), "hint", leaf)
        return leaf if isinstance(leaf, _PLAIN) else hint
    shape, strides = _hints(leaf.shape), _hints(leaf.stride())
    assert shape is not None
    assert strides is not None
    if smaller:
        small = [smaller.get(n, n) for n in shape]
        strides = dense_strides(small, order_of(shape, strides), {d for d, s in enumerate(strides) if s == 0})
        shape = tuple(small)
    made = torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
    storage = torch.empty(0, dtype=leaf.dtype, device=leaf.device).set_(made.untyped_storage())
    if leaf.dtype.is_floating_point and leaf.itemsize > 1:
        storage.uniform_(0.05, 1)  # no zero divisor, no singular matrix
    else:
        storage.fill_(0)
    return made


def _order_unless_alike(real: torch.Tensor, fake: torch.Tensor) -> tuple[int, ...] | None:
    """The real order of dimensions, where elements lie without holes and otherwise than the fake tensor says.

    Dimensions of size 1 have their place in the order too: by their strides kernels tell whether channels come last.
    """
    if real.layout is not torch.strided or real.ndim != fake.ndim or not _is_ambiguous(real):
        return None
    order, said, shape = order_of(real.shape, real.stride()), _hints(fake.stride()), _hints(fake.shape)
    if said is None or shape is None:
        return None
    dense = dense_strides(real.shape, order)
    if any(n > 1 and dense[d] != real.stride(d) for d, n in enumerate(real.shape)):
        return None
    alike = order == order_of(shape, said) and dense_strides(shape, order) == said
    return None if alike or (shape == real.shape and said == real.stride()) else order


def _laid_out(mode: Any, result: Any, orders: Sequence[tuple[int, ...] | None]) -> Any:
    leaves, form = flattened(result)
    pending = iter(orders)
    found = []
    for leaf in leaves:
        order = next(pending) if isinstance(leaf, torch.Tensor) else None
        if order is not None:
            with mode:
                strides = dense_strides(leaf.shape, order)
                leaf = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=leaf.device)
        found.append(leaf)
    return filled(form, found)
