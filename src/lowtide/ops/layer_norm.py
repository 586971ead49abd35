"""Layer norm's gradients from its output, where `scale.py` allows it.

A transformer keeps what layer norm gives for the product that reads it; with this the residual stream that went in need
not be kept as well. Rows are worked through some at a time, so that xhat = (y - beta) / gamma never exists whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import passed
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.norm_site import Places, add_from_output, argument, can_turn_back, norm_site
from lowtide.ops.scale import faint_channels, inverse, put_aside_columns

if TYPE_CHECKING:
    from torch import Tensor

_FORWARD = {"aten.native_layer_norm.default": Places(0, 2, 3)}
_BACKWARD = "aten.native_layer_norm_backward.default"
_PLACES = Places(1, 5, 6, 3, 4)
_MASK = 7
_AT_ONCE_B = 2**20  # of rows that are worked on together

Gradients = tuple["Tensor | None", "Tensor | None", "Tensor | None"]


def layer_norm_backward_from_output(
    gradient: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    aside: Tensor,
    mask: Sequence[bool],
) -> Gradients:
    """Layer norm's gradients, from its output.

    torch's own kernel makes them from xhat, which has mean zero and deviation one; what is left is to divide by the
    deviation that there was. Faint columns come from what was put aside.
    """
    width, rows = weight.numel(), rstd.numel()
    over, scale = inverse(weight, bias).reshape(-1), weight.reshape(-1)
    shift = None if bias is None else bias.reshape(-1)
    faint = faint_channels(weight, bias)
    incoming, ys = gradient.reshape(rows, width), y.reshape(rows, width)
    middle, spread = mean.reshape(rows, 1), rstd.reshape(rows, 1)
    whole = torch.empty_like(incoming, memory_format=torch.contiguous_format) if mask[0] else None
    sums = [torch.zeros_like(scale) if wanted else None for wanted in mask[1:]]
    step = _rows_at_once(rows, width * y.element_size())
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        xhat = ys[part] * over if shift is None else (ys[part] - shift).mul_(over)
        for row, column in enumerate(faint):
            xhat[:, column] = (aside[row, part] - middle[part, 0]) * spread[part, 0]
        count = xhat.shape[0]
        standard = xhat.new_zeros((count, 1)), xhat.new_ones((count, 1))
        made = torch.ops.aten.native_layer_norm_backward(
            incoming[part], xhat, [width], *standard, scale, shift, list(mask)
        )
        if whole is not None:
            torch.mul(made[0], spread[part], out=whole[part])
        for total, one in zip(sums, made[1:], strict=True):
            if total is not None:
                total += one
    first, second = (None if s is None else s.view(weight.shape) for s in sums)
    return None if whole is None else whole.view(gradient.shape), first, second


def _rows_at_once(rows: int, row_B: int) -> int:
    """A sixteenth of them, or what fits the cache."""
    return max(1, min(rows, max(_AT_ONCE_B // max(1, row_B), rows // 16)))


@final
@dataclass(frozen=True)
class LayerNorm(AbstractFamily):
    """Gradients from output (reassociated). Recomputing with known statistics saves nothing: rows are cached."""

    name: ClassVar[str] = "layer norm"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar = {
        "layer_norm_put_aside": Kernel(put_aside_columns, traffic_B=lambda g, r: 2 * g.values[r.outputs[0]].size_B),
        "layer_norm_backward_from_output": Kernel(
            layer_norm_backward_from_output, workspace_B=lambda g, r: _workspace_B(g, r)
        ),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        if not numerics.admits(Numerics.REASSOCIATED):
            return
        for backward in list(builder.calls(_BACKWARD)):
            site = norm_site(builder, backward, _FORWARD, _PLACES)
            if site is not None and can_turn_back(builder, site):
                add_from_output(builder, site, self.name, argument(backward, _MASK), columns=True)


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """xhat and the gradient of some rows, and some numbers per column; a gradient that is not dense is copied."""
    y, mean = passed(graph, recipe, 1), passed(graph, recipe, 4)
    if y is None or mean is None or not mean.numel:
        return 0
    row_B = y.extent_B // mean.numel
    return 2 * _rows_at_once(mean.numel, row_B) * row_B + 8 * row_B
