"""Kernels that pack one bit per element of a saved value, and make a gradient from it.

Bit i of byte j speaks of element 8 j + i, in a given order (`memory_order`). On the processor they are the core's
(`src/core/bits.hpp`) and need no byte besides their results; elsewhere torch does the same piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lowtide._core import mask_and_scale_gradient, mask_gradient, scale_gradient
from lowtide._core import pack_answers as pack_answers_of
from lowtide._core import pack_flags as pack_flags_of
from lowtide.ir.call import Items
from lowtide.ir.geometry import ITEM_B, Geometry
from lowtide.ir.graph import Graph, Recipe
from lowtide.ops.arguments import passed
from lowtide.ops.base import Kernel
from lowtide.ops.lazy import torch
from lowtide.ops.memory_order import (
    Order,
    empty_in_order,
    empty_like_gradient,
    follows,
    in_order,
    order_of,
    spans,
    undone,
)

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""The core's codes of element types."""
QUESTIONS = {"above": 0, "greater": 1, "within": 2}
"""The core's codes of what is asked of an element: see `Question` in `src/core/bits.hpp`."""
PIECE = 1 << 21
"""Elements that torch's versions handle at once, a multiple of 8."""
PIECE_B = 24 * PIECE
"""What torch's versions allocate besides their results, at the most."""


def packed_B(count: int, width: int = 1) -> int:
    """Bytes of `count` entries of `width` bits."""
    return (count * width + 7) // 8


def bits_geometry(of: Geometry, width: int = 1) -> Geometry:
    """What a packed value is: a row of bytes."""
    return Geometry("uint8", (packed_B(of.numel, width),), (1,), 0, of.device)


def float_code(tensor: Tensor) -> int | None:
    """The core's code of a tensor's elements; None where torch has to do the work."""
    return FLOATS.get(str(tensor.dtype).removeprefix("torch.")) if tensor.device.type == "cpu" else None


def pack_answers(x: Tensor, question: str, low: float, high: float, order: Order) -> Tensor:
    """Packs the results of one comparison, a bit for every element.

    Arguments:
        question: of `QUESTIONS`; it compares with `low`, and with `high` if it has two sides.
        order: in which bits follow each other.

    Returns: bytes.
    """
    x = in_order(x, order)
    bits = torch.empty(packed_B(x.numel()), dtype=torch.uint8, device=x.device)
    code = float_code(x)
    if code is None:
        wide = torch.float32 if x.element_size() < 4 else x.dtype
        pack_by_torch(bits, x, lambda piece: _ANSWERS[question](piece.to(wide), low, high))
    else:
        pack_answers_of(
            bits.data_ptr(), x.data_ptr(), x.numel(), code, QUESTIONS[question], low, high, torch.get_num_threads()
        )
    return bits


def pack_flags(flags: Tensor, order: Order) -> Tensor:
    """Packs truth values; see `pack_answers`."""
    flags = in_order(flags, order)
    bits = torch.empty(packed_B(flags.numel()), dtype=torch.uint8, device=flags.device)
    if flags.device.type == "cpu":
        pack_flags_of(bits.data_ptr(), flags.data_ptr(), flags.numel(), torch.get_num_threads())
    else:
        pack_by_torch(bits, flags, lambda piece: piece)
    return bits


def masked_gradient(
    gradient: Tensor, bits: Tensor, order: Order, as_saved: bool = True, out: Tensor | None = None
) -> Tensor:
    """The gradient where a bit is set, and zero elsewhere.

    Arguments:
        order: that of the bits.
        as_saved: whether the result lies as the saved value did; else as the gradient does.
        out: where the result goes: the gradient itself, or nothing.
    """

    def on_core(to: Tensor, of: Tensor) -> None:
        threads = torch.get_num_threads()
        mask_gradient(to.data_ptr(), of.data_ptr(), bits.data_ptr(), of.numel(), of.element_size(), threads)

    def by_torch(piece: Tensor, first: int, last: int) -> Tensor:
        return piece.masked_fill(~unpacked_by_torch(bits, first, last), 0)

    return converted(gradient, order, as_saved, out, on_core, by_torch)


def scaled_gradient(
    gradient: Tensor,
    bits: Tensor,
    on: float,
    off: float,
    order: Order,
    as_saved: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient times one factor where a bit is set, and times another elsewhere; see `masked_gradient`."""

    def on_core(to: Tensor, of: Tensor) -> None:
        code, threads = float_code(of), torch.get_num_threads()
        assert code is not None
        scale_gradient(to.data_ptr(), of.data_ptr(), bits.data_ptr(), of.numel(), code, on, off, threads)

    def by_torch(piece: Tensor, first: int, last: int) -> Tensor:
        return torch.where(unpacked_by_torch(bits, first, last), piece * on, piece * off)

    return converted(gradient, order, as_saved, out, on_core, by_torch)


def masked_scaled_gradient(
    gradient: Tensor, bits: Tensor, on: float, order: Order, as_saved: bool = True, out: Tensor | None = None
) -> Tensor:
    """The gradient times a factor where a bit is set, and zero elsewhere; see `masked_gradient`."""

    def on_core(to: Tensor, of: Tensor) -> None:
        code, threads = float_code(of), torch.get_num_threads()
        assert code is not None
        mask_and_scale_gradient(to.data_ptr(), of.data_ptr(), bits.data_ptr(), of.numel(), code, on, threads)

    def by_torch(piece: Tensor, first: int, last: int) -> Tensor:
        return (piece * on).masked_fill(~unpacked_by_torch(bits, first, last), 0)

    return converted(gradient, order, as_saved, out, on_core, by_torch)


def converted(
    gradient: Tensor,
    order: Order,
    as_saved: bool,
    out: Tensor | None,
    on_core: Callable[[Tensor, Tensor], None],
    by_torch: Callable[[Tensor, int, int], Tensor],
) -> Tensor:
    """Makes a result element by element, in an order, wherever the gradient and the result lie.

    Arguments:
        on_core: fills its first argument from its second, both in order, on the processor.
        by_torch: the results of a piece of the gradient that is given with its first and last element.
    """
    result = out
    if result is None and as_saved:
        result = empty_in_order(gradient.shape, order, gradient)
    elif result is None:
        result = empty_like_gradient(gradient, order)
    of = in_order(gradient, order)
    to = result.permute(tuple(order))
    if not to.is_contiguous():
        to = torch.empty_like(of, memory_format=torch.contiguous_format)
    if float_code(of) is not None:
        on_core(to, of)
    else:
        flat, results = of.view(-1), to.view(-1)
        for first, last in spans(flat.numel(), PIECE):
            results[first:last] = by_torch(flat[first:last], first, last)
    if to.data_ptr() != result.data_ptr():
        result.copy_(to.permute(undone(order)))
    return result


def pack_by_torch(bits: Tensor, x: Tensor, answer: Callable[[Tensor], Tensor]) -> None:
    """Fills bits from the elements of a contiguous tensor, by torch's operators, piece by piece."""
    x = x.reshape(-1)
    places = torch.arange(8, dtype=torch.uint8, device=x.device)
    for first, last in spans(x.numel(), PIECE):
        flags = answer(x[first:last]).to(torch.uint8)
        if flags.numel() % 8:
            flags = torch.nn.functional.pad(flags, (0, -flags.numel() % 8))
        bits[first // 8 : (last + 7) // 8] = (flags.view(-1, 8) << places).sum(1, dtype=torch.uint8)


def unpacked_by_torch(bits: Tensor, first: int, last: int) -> Tensor:
    """The truth values of elements [first, last), by torch's operators; `first` is a multiple of 8."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[first // 8 : (last + 7) // 8, None] >> places) & 1).view(-1)[: last - first].bool()


_ANSWERS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "above": lambda x, low, high: ~(x <= low),  # noqa: ARG005
    "greater": lambda x, low, high: x > low,  # noqa: ARG005
    "within": lambda x, low, high: (x > low) & (x < high),
}


def workspace_B(graph: Graph, recipe: Recipe) -> int:
    """What a kernel of bits allocates besides its result: a copy of what lies in another order, a piece of torch's."""
    of = passed(graph, recipe, 0)
    if of is None:
        return 0
    order = next(order_of(a) for a in reversed(recipe.args) if isinstance(a, Items))
    copy_B = 0 if follows(of, order) else of.numel * ITEM_B[of.dtype]
    return copy_B + (0 if of.device == "cpu" else min(PIECE_B, 24 * of.numel))


KERNELS = {
    "pack_answers": Kernel(pack_answers, workspace_B=workspace_B),
    "pack_flags": Kernel(pack_flags, workspace_B=workspace_B),
    "masked_gradient": Kernel(masked_gradient, workspace_B=workspace_B),
    "scaled_gradient": Kernel(scaled_gradient, workspace_B=workspace_B),
    "masked_scaled_gradient": Kernel(masked_scaled_gradient, workspace_B=workspace_B),
}
