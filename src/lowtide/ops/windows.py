"""Kernels of maximum pooling that keep, per result, where in its window the maximum lay, in the fewest bits.

On the processor they are the core's (`src/core/windows.hpp`) and need no byte besides their results; elsewhere torch
does the same, a few images at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowtide._core import Windows, pool_maximum
from lowtide._core import pack_indices as pack_indices_on_core
from lowtide._core import pool_gradient as pool_gradient_on_core
from lowtide._core import pool_gradient_from_indices as pool_gradient_from_indices_on_core
from lowtide.ir.call import Items
from lowtide.ir.geometry import ITEM_B
from lowtide.ir.graph import Graph, Recipe
from lowtide.ops.arguments import passed
from lowtide.ops.base import Kernel
from lowtide.ops.bits import PIECE, PIECE_B, float_code, pack_by_torch, packed_B, unpacked_by_torch
from lowtide.ops.lazy import torch
from lowtide.ops.memory_order import empty_in_order, follows, in_order, order_of, spans

if TYPE_CHECKING:
    from torch import Tensor

Extents = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """One maximum pooling.

    Arguments:
        input, output: whole shapes: one or two leading dimensions, then those over which windows move.
        kernel, stride, padding, dilation: per such dimension.
        ceil_mode: torch's.
        channels_last: whether the second dimension lies innermost in memory, in all tensors.
    """

    input: Extents
    output: Extents
    kernel: Extents
    stride: Extents
    padding: Extents
    dilation: Extents
    ceil_mode: bool
    channels_last: bool

    def arguments(self) -> tuple[Items | bool, ...]:
        """As recipes have it; kernels take it back in this form."""
        shapes = (self.input, self.output, self.kernel, self.stride, self.padding, self.dilation)
        return (*(Items(s) for s in shapes), self.ceil_mode, self.channels_last)

    @classmethod
    def of(cls, *arguments: Sequence[int] | bool) -> Pool:
        """The inverse of `arguments`, from what a kernel is passed."""
        *shapes, ceil_mode, channels_last = arguments
        whole, output, kernel, stride, padding, dilation = (() if isinstance(s, bool) else tuple(s) for s in shapes)
        return cls(whole, output, kernel, stride, padding, dilation, bool(ceil_mode), bool(channels_last))

    @property
    def order(self) -> Extents:
        """Dimensions as they lie in memory, the widest steps first."""
        dims = range(len(self.input))
        return (0, *dims[2:], 1) if self.channels_last else tuple(dims)

    @property
    def leading(self) -> int:
        """Dimensions before those over which windows move."""
        return len(self.input) - len(self.kernel)

    def windows(self) -> Windows:
        """As the core wants it.

        Raises:
            ValueError: if the core cannot pack it.
        """
        outer = inner = 1
        for position, extent in enumerate(self.input[: self.leading]):
            if self.channels_last and position == 1:
                inner = extent
            else:
                outer *= extent
        shapes = (self.input[self.leading :], self.output[self.leading :])
        return Windows(outer, inner, *map(_first_of_one, shapes), *self._threes())

    def _threes(self) -> list[tuple[int, int, int]]:
        lists = ((self.kernel, 1), (self.stride, 1), (self.padding, 0), (self.dilation, 1))
        return [_first_of_one(values, one) for values, one in lists]


def _first_of_one(values: Extents, one: int = 1) -> tuple[int, int, int]:
    """Three dimensions, where planes have a first one of a single element."""
    first, second, third = (one,) * (3 - len(values)) + tuple(values)
    return first, second, third


def max_pool_packed(x: Tensor, *arguments: Sequence[int] | bool) -> tuple[Tensor, Tensor]:
    """Maximum pooling without indices.

    Arguments:
        arguments: of a `Pool`.

    Returns: the maxima, and packed where they lay.
    """
    pool = Pool.of(*arguments)
    windows, code = pool.windows(), float_code(x)
    if code is None:
        y, indices = _operator(pool, "")(x, *_settings(pool), pool.ceil_mode)
        return y, pack_pool_indices(indices, *arguments)
    x = in_order(x, pool.order)
    y = empty_in_order(pool.output, pool.order, x)
    codes = torch.empty(windows.packed_B, dtype=torch.uint8, device=x.device)
    pool_maximum(y.data_ptr(), codes.data_ptr(), x.data_ptr(), windows, code, torch.get_num_threads())
    return y, codes


def pack_pool_indices(indices: Tensor, *arguments: Sequence[int] | bool) -> Tensor:
    """Packs torch's indices of maxima: where in its window each lies; see `max_pool_packed`."""
    pool = Pool.of(*arguments)
    windows = pool.windows()
    rows = in_order(indices, pool.order)
    codes = torch.empty(windows.packed_B, dtype=torch.uint8, device=indices.device)
    if indices.device.type == "cpu":
        pack_indices_on_core(codes.data_ptr(), rows.data_ptr(), windows, torch.get_num_threads())
    else:
        pack_windows_by_torch(codes, rows, pool, windows.width)
    return codes


def pool_gradient(gradient: Tensor, codes: Tensor, *arguments: Sequence[int] | bool) -> Tensor:
    """The gradient of a maximum pooling's input, from packed codes; see `max_pool_packed`."""
    pool = Pool.of(*arguments)
    windows, code = pool.windows(), float_code(gradient)
    rows = in_order(gradient, pool.order)
    out = empty_in_order(pool.input, pool.order, gradient)
    if code is None:
        _gradient_by_torch(out, rows, pool, _unpacked_by_torch(codes, rows.numel(), windows.width))
    else:
        pool_gradient_on_core(out.data_ptr(), rows.data_ptr(), codes.data_ptr(), windows, code, torch.get_num_threads())
    return out


def pool_gradient_from_indices(gradient: Tensor, indices: Tensor, *arguments: Sequence[int] | bool) -> Tensor:
    """The gradient of a maximum pooling's input, from torch's indices alone; see `max_pool_packed`."""
    pool = Pool.of(*arguments)
    code = float_code(gradient)
    rows, places = in_order(gradient, pool.order), in_order(indices, pool.order)
    out = empty_in_order(pool.input, pool.order, gradient)
    if code is None:
        _gradient_by_torch(out, rows, pool, places)
    else:
        threads, windows = torch.get_num_threads(), pool.windows()
        pool_gradient_from_indices_on_core(out.data_ptr(), rows.data_ptr(), places.data_ptr(), windows, code, threads)
    return out


def _operator(pool: Pool, suffix: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch.ops.aten, f"max_pool{len(pool.kernel)}d_with_indices{suffix}").default
    return found


def _settings(pool: Pool) -> list[list[int]]:
    return [list(pool.kernel), list(pool.stride), list(pool.padding), list(pool.dilation)]


def _corners(pool: Pool, device: torch.device) -> list[Tensor]:
    """Per dimension, where windows begin, shaped to broadcast with a tensor in order."""
    found = []
    for d, extent in enumerate(pool.output[pool.leading :]):
        begins = torch.arange(extent, device=device) * pool.stride[d] - pool.padding[d]
        behind = len(pool.kernel) - 1 - d + pool.channels_last
        found.append(begins.view(-1, *(1,) * behind))
    return found


def pack_windows_by_torch(codes: Tensor, rows: Tensor, pool: Pool, width: int) -> None:
    """Codes from indices in order, a few images at a time; then bits from codes."""
    taps = torch.empty(rows.shape, dtype=torch.uint8, device=rows.device)
    corners = _corners(pool, rows.device)
    for first, last in spans(rows.shape[0], _images(rows)):
        rest, code = rows[first:last], torch.zeros((), dtype=torch.int64, device=rows.device)
        factor = 1
        for d in reversed(range(len(pool.kernel))):
            extent = pool.input[pool.leading + d]
            code = code + (rest % extent - corners[d]) // pool.dilation[d] * factor
            rest = rest // extent
            factor *= pool.kernel[d]
        taps[first:last] = code
    places = torch.arange(width, dtype=torch.uint8, device=rows.device)
    flat = taps.view(-1)
    for first, last in spans(flat.numel(), PIECE // 8):
        flags = ((flat[first:last, None] >> places) & 1).view(-1)
        pack_by_torch(codes[first * width // 8 : packed_B(last, width)], flags, lambda piece: piece)


def _unpacked_by_torch(codes: Tensor, count: int, width: int) -> Tensor:
    """Codes, a byte each."""
    taps = torch.empty(count, dtype=torch.uint8, device=codes.device)
    places = torch.arange(width, dtype=torch.uint8, device=codes.device)
    for first, last in spans(count, PIECE // 8):
        flags = unpacked_by_torch(codes, first * width, last * width).view(-1, width).to(torch.uint8)
        taps[first:last] = (flags << places).sum(1, dtype=torch.uint8)
    return taps


def _gradient_by_torch(out: Tensor, rows: Tensor, pool: Pool, marks: Tensor) -> None:
    """torch's own backward a few images at a time; marks are indices, or codes of a byte."""
    marks = marks.view(rows.shape)
    corners = _corners(pool, rows.device)
    to = out.permute(pool.order)
    back = sorted(range(len(pool.order)), key=lambda i: pool.order[i])
    for first, last in spans(rows.shape[0], _images(to)):
        mark = marks[first:last]
        places = mark if mark.dtype == torch.int64 else _places(mark.to(torch.int64), pool, corners)
        piece = rows[first:last]
        shape = [last - first, *to.shape[1:]]
        stand_in = torch.zeros((), dtype=rows.dtype, device=rows.device).expand(shape)
        inputs = (t.permute(back) for t in (piece, stand_in))
        settings = (*_settings(pool), pool.ceil_mode, places.permute(back))
        to[first:last] = _operator(pool, "_backward")(*inputs, *settings).permute(pool.order)


def _places(codes: Tensor, pool: Pool, corners: list[Tensor]) -> Tensor:
    """Indices as torch has them, from codes."""
    places, factor = torch.zeros((), dtype=torch.int64, device=codes.device), 1
    for d in reversed(range(len(pool.kernel))):
        places = places + (codes % pool.kernel[d] * pool.dilation[d] + corners[d]) * factor
        codes = codes // pool.kernel[d]
        factor *= pool.input[pool.leading + d]
    return places


def _images(rows: Tensor) -> int:
    """Of the outermost dimension, how many torch's versions take at once."""
    return max(1, PIECE * rows.shape[0] // max(1, rows.numel()))


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Copies of what lies in another order; elsewhere than on the processor codes of a byte, and a piece."""
    pool = Pool.of(*(order_of(a) if isinstance(a, Items) else bool(a) for a in recipe.args[-8:]))
    given = [g for i in range(len(recipe.args) - 8) if (g := passed(graph, recipe, i)) is not None]
    copies_B = sum(g.numel * ITEM_B[g.dtype] for g in given if len(g.shape) > 1 and not follows(g, pool.order))
    if not given or given[0].device == "cpu":
        return copies_B
    results, places = 1, 1
    for extent in pool.output:
        results *= extent
    for extent in pool.input[1:]:
        places *= extent
    indices_B = 8 * results if recipe.op == "lowtide.max_pool_packed" else 0
    return copies_B + indices_B + results + max(PIECE_B, 24 * places)


KERNELS = {
    "max_pool_packed": Kernel(max_pool_packed, workspace_B=_workspace_B),
    "pack_pool_indices": Kernel(pack_pool_indices, workspace_B=_workspace_B),
    "pool_gradient": Kernel(pool_gradient, workspace_B=_workspace_B),
    "pool_gradient_from_indices": Kernel(pool_gradient_from_indices, workspace_B=_workspace_B),
}
