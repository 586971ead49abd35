"""Batch norm from its statistics, from its output, or from nothing.

Its statistics are a few numbers per channel. While they are there, its output is recomputed from its input in one pass,
and running statistics change once (M. E. Shah et al., "Memory Optimization for Deep Networks", ICLR 2021, keep them,
too). Its gradient can be made from its output (the same; S. Rota Bulò et al., "In-Place Activated BatchNorm", CVPR
2018) where `scale.py` allows it. With running statistics the gradient of the input needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.call import Items
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound, passed
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.norm_site import (
    Places,
    add_from_output,
    argument,
    can_turn_back,
    is_contiguous,
    norm_site,
    result,
    tensor,
)
from lowtide.ops.scale import faint_channels, inverse, put_aside

if TYPE_CHECKING:
    from torch import Tensor

_TRAINING = {
    "aten._native_batch_norm_legit_functional.default": Places(0, 1, 2),
    "aten._native_batch_norm_legit.no_stats": Places(0, 1, 2),
}
_BACKWARD = "aten.native_batch_norm_backward.default"
_PLACES = Places(1, 2, None, 5, 6)
_TRAIN, _MASK = 7, 9  # positions of the backward's arguments
_SAME_BITS = ("float32", "float64", "bfloat16")
"""Of these the processor's kernel makes the same output from the statistics as with them."""

Gradients = tuple["Tensor | None", "Tensor | None", "Tensor | None"]


def batch_norm_again(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor) -> Tensor:
    """What batch norm made of x, from the statistics that it saved. Bit for bit on the CPU.

    torch's own kernel for running statistics does it: with a variance of one and no epsilon it multiplies by the
    weight alone, and adds bias - mean * weight, as it does in training.
    """
    number = mean.dtype if x.dtype == mean.dtype == torch.float64 else torch.float32
    scale = invstd.to(number) if weight is None else invstd.to(number) * weight
    shift = torch.zeros_like(scale) if bias is None else bias.to(number)
    one = torch.ones_like(scale)
    made = torch.ops.aten._native_batch_norm_legit_no_training(x, scale, shift, mean.to(number), one, 0.0, 0.0)
    y: Tensor = made[0]
    return y


def batch_norm_backward_from_output(
    gradient: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    aside: Tensor,
    mask: Sequence[bool],
) -> Gradients:
    """Batch norm's gradients, from its output.

    torch's own kernel makes them: xhat = (y - beta) / gamma is what it works out of an input y with mean beta and
    deviation gamma. Faint channels follow one by one from what was put aside.
    """
    faint = [(c, aside[row]) for row, c in enumerate(faint_channels(weight, bias))]
    return turned_back(gradient, y, weight, bias, mean, invstd, faint, mask)


def turned_back(
    gradient: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    faint: Sequence[tuple[int, Tensor]],
    mask: Sequence[bool],
) -> Gradients:
    """The same for any channels.

    Arguments:
        faint: those of them that are, and what went into them.
    """
    over = inverse(weight, bias)
    scale = over.reciprocal()
    middle = torch.zeros_like(over) if bias is None else bias
    kernel = torch.ops.aten.native_batch_norm_backward
    made: Gradients = kernel(gradient, y, scale * scale * invstd, None, None, middle, over, True, 0.0, list(mask))
    for c, went_in in faint:
        own = slice(c, c + 1)
        x, part = went_in.unsqueeze(1), gradient[:, own].contiguous()
        ours: Gradients = kernel(part, x, weight[own], None, None, mean[own], invstd[own], True, 0.0, list(mask))
        for whole, one, dim in zip(made, ours, (1, 0, 0), strict=True):
            if whole is not None and one is not None:
                whole.narrow(dim, c, 1).copy_(one)
    return made


@final
@dataclass(frozen=True)
class BatchNorm(AbstractFamily):
    """Recomputation in one pass, in no group; gradients from output (reassociated) or nothing (running statistics)."""

    name: ClassVar[str] = "batch norm"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar = {
        "batch_norm_again": Kernel(batch_norm_again, workspace_B=lambda g, r: _vectors_B(g, r, 4)),
        "batch_norm_put_aside": Kernel(put_aside, traffic_B=lambda g, r: 2 * g.values[r.outputs[0]].size_B),
        "batch_norm_backward_from_output": Kernel(
            batch_norm_backward_from_output,
            traffic_B=lambda g, r: traffic_B(g, r),
            workspace_B=lambda g, r: _vectors_B(g, r, 8),
        ),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for forward in list(builder.calls(*_TRAINING)):
            _add_again(builder, forward)
        for backward in list(builder.calls(_BACKWARD)):
            if argument(backward, _TRAIN) is False:
                _add_from_nothing(builder, backward)
            elif numerics.admits(Numerics.REASSOCIATED):
                site = norm_site(builder, backward, _TRAINING, _PLACES)
                if site is not None and can_turn_back(builder, site):
                    add_from_output(builder, site, self.name, argument(backward, _MASK), columns=False)


def _add_again(builder: GraphBuilder, forward: Recipe) -> None:
    places = _TRAINING[forward.op]
    x, y, mean, invstd = tensor(forward, places.x), *(result(forward, i) for i in range(3))
    if x is None or y is None or mean is None or invstd is None or not _in_one_pass(x.geometry):
        return
    weight, bias = argument(forward, places.weight), argument(forward, places.bias)
    reads, args = bound(x, weight, bias, builder.read(mean), builder.read(invstd))
    builder.recipe(forward, "lowtide.batch_norm_again", outputs=(y,), reads=reads, args=args)


def _in_one_pass(geometry: Geometry | None) -> bool:
    """Whether the processor's kernel goes through a tensor element by element, channels second or last."""
    if geometry is None or geometry.dtype not in _SAME_BITS:
        return False
    return is_contiguous(geometry) or is_contiguous(geometry, (0, *range(2, len(geometry.shape)), 1))


def _add_from_nothing(builder: GraphBuilder, backward: Recipe) -> None:
    """With running statistics the input's gradient is a multiple of the output's: the input itself is not looked at."""
    mask, x = argument(backward, _MASK), tensor(backward, _PLACES.x)
    if not isinstance(mask, Items) or mask.items[1] is not False or x is None:
        return
    gradient = tensor(backward, 0)
    if gradient is None or not _same_layout(gradient.geometry, x.geometry):
        return
    reads, args = bound(gradient, gradient, *(argument(backward, i) for i in range(2, len(backward.args))))
    other = builder.recipe(backward, _BACKWARD, outputs=backward.outputs, reads=reads, args=args, paths=backward.paths)
    name = f"batch norm {backward.id}"
    builder.group(SAVED, name, [backward.id], [Option("without its input", (other,))])


def _same_layout(one: Geometry | None, other: Geometry | None) -> bool:
    """Whether two tensors lie in memory alike: the kernel's algorithm and the result's layout depend on it."""
    if one is None or other is None:
        return False
    return (one.dtype, one.shape, one.stride) == (other.dtype, other.shape, other.stride)


def traffic_B(graph: Graph, recipe: Recipe) -> int:
    """Of a backward: gradient and other large tensor are read twice, since sums over the batch come first."""
    large = passed(graph, recipe, 0)
    return 0 if large is None else 5 * large.extent_B


def _vectors_B(graph: Graph, recipe: Recipe, count: int) -> int:
    """Bytes of some vectors of one number per channel, as the statistics are."""
    mean = passed(graph, recipe, 4)
    return 0 if mean is None else count * mean.extent_B
