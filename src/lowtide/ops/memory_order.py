"""In which order a tensor's elements lie in memory: what is packed element by element speaks of them in that order.

An *order* lists the dimensions, the one with the widest steps first: (0, 2, 3, 1) for channels-last images. It is
written into recipes when a graph is captured; a tensor that comes in another one is copied into it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowtide.ir.call import Items
from lowtide.ir.geometry import Geometry
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Order = Sequence[int]


def dense_order(geometry: Geometry | None) -> tuple[int, ...] | None:
    """The order in which elements follow each other without a hole; None where they do not, or nothing is known."""
    if geometry is None or not (geometry.is_dense or geometry.numel == 0):
        return None
    return tuple(sorted(range(len(geometry.shape)), key=lambda d: (-geometry.stride[d], d)))


def follows(geometry: Geometry | None, order: Order) -> bool:
    """Whether the elements lie without a hole in an order; dimensions of one element may lie anywhere."""
    if geometry is None:
        return False
    expected = 1
    for d in reversed(order):
        if geometry.shape[d] != 1 and geometry.stride[d] != expected and geometry.numel:
            return False
        expected *= geometry.shape[d]
    return True


def as_argument(order: Order) -> Items:
    """An order as recipes have it."""
    return Items(tuple(order))


def order_of(argument: Items) -> tuple[int, ...]:
    """The order that a recipe has as an argument."""
    return tuple(d for d in argument.items if isinstance(d, int))


def in_order(tensor: Tensor, order: Order) -> Tensor:
    """A tensor seen in an order, its elements one after the other: itself, or a copy where they lie differently."""
    return tensor.permute(tuple(order)).contiguous()


def undone(order: Order) -> tuple[int, ...]:
    """The permutation that leads back from what was permuted by an order."""
    return tuple(sorted(range(len(order)), key=lambda i: order[i]))


def empty_in_order(shape: Sequence[int], order: Order, like: Tensor) -> Tensor:
    """An empty tensor of a shape whose elements lie in an order, of the dtype and on the device of another one."""
    rows = torch.empty([shape[d] for d in order], dtype=like.dtype, device=like.device)
    return rows.permute(undone(order))


def empty_like_gradient(gradient: Tensor, order: Order) -> Tensor:
    """An empty tensor as torch lays out what an elementwise operator makes of a gradient first, and a saved value.

    The gradient decides; where one element of it stands for many, the saved value's order does.
    """
    strides = gradient.stride()
    if any(stride == 0 and extent > 1 for stride, extent in zip(strides, gradient.shape, strict=True)):
        return empty_in_order(gradient.shape, order, gradient)
    return empty_in_order(gradient.shape, sorted(range(gradient.dim()), key=lambda d: -strides[d]), gradient)


def spans(count: int, length: int) -> list[tuple[int, int]]:
    """The pieces [first, last) of a range, all but the last one of a length."""
    return list(itertools.pairwise([*range(0, count, length), count])) if count else []
