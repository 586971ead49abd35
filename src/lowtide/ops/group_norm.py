"""Group norm from its statistics, and its gradients from its output where `scale.py` allows it.

As batch norm, but for a statistic per sample and group. Samples are worked through some at a time, so that
xhat = (y - beta) / gamma never exists whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.graph import Graph, Recipe
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

_FORWARD = "aten.native_group_norm.default"
_FORWARDS = {_FORWARD: Places(0, 1, 2)}
_BACKWARD = "aten.native_group_norm_backward.default"
_PLACES = Places(1, 4, None, 2, 3)
_MASK = 9
_SAME_BITS = ("float32", "float64")
"""Of these the processor's kernel makes the same output from the statistics as with them."""

Gradients = tuple["Tensor | None", "Tensor | None", "Tensor | None"]


def group_norm_again(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """What group norm made of x, from the statistics that it saved. Bit for bit on the CPU.

    As for batch norm (`batch_norm_again`), with every sample's every channel as a channel.
    """
    samples, channels = x.shape[:2]
    each = channels // mean.shape[1]
    scale = rstd.repeat_interleave(each, 1).mul_(weight).view(-1)
    middle = mean.repeat_interleave(each, 1).view(-1)
    shift = bias.repeat(samples)
    kernel = torch.ops.aten._native_batch_norm_legit_no_training
    flat = x.reshape(1, samples * channels, -1)
    y: Tensor = kernel(flat, scale, shift, middle, torch.ones_like(scale), 0.0, 0.0)[0]
    return y.view(x.shape)


def group_norm_backward_from_output(
    gradient: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    aside: Tensor,
    mask: Sequence[bool],
) -> Gradients:
    """Group norm's gradients, from its output: torch's own kernel makes them from xhat, see `layer_norm.py`."""
    samples, channels = y.shape[:2]
    groups, each = mean.shape[1], channels // mean.shape[1]
    over = inverse(weight, bias).view(1, -1, 1)
    faint = faint_channels(weight, bias)
    incoming, ys = gradient.reshape(samples, channels, -1), y.reshape(samples, channels, -1)
    size = ys.shape[2]
    whole = torch.empty_like(incoming, memory_format=torch.contiguous_format) if mask[0] else None
    sums = [torch.zeros_like(weight) if wanted else None for wanted in mask[1:]]
    step = max(1, samples // 16)
    for begin in range(0, samples, step):
        part = slice(begin, min(begin + step, samples))
        xhat = ys[part] * over if bias is None else (ys[part] - bias.view(1, -1, 1)).mul_(over)
        for row, channel in enumerate(faint):
            group, rest = channel // each, aside[row, part].reshape(xhat.shape[0], -1)
            xhat[:, channel] = (rest - mean[part, group, None]) * rstd[part, group, None]
        count = xhat.shape[0]
        standard = xhat.new_zeros((count, groups)), xhat.new_ones((count, groups))
        made = torch.ops.aten.native_group_norm_backward(
            incoming[part], xhat, *standard, weight, count, channels, size, groups, list(mask)
        )
        if whole is not None:
            spread = rstd[part].unsqueeze(2)
            torch.mul(made[0].view(count, groups, -1), spread, out=whole[part].view(count, groups, -1))
        for total, one in zip(sums, made[1:], strict=True):
            if total is not None:
                total += one
    first, second = sums
    return None if whole is None else whole.view(gradient.shape), first, second


@final
@dataclass(frozen=True)
class GroupNorm(AbstractFamily):
    """Recomputation from statistics, in no group; gradients from output (reassociated)."""

    name: ClassVar[str] = "group norm"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar = {
        "group_norm_again": Kernel(group_norm_again, workspace_B=lambda g, r: _vectors_B(g, r)),
        "group_norm_put_aside": Kernel(put_aside, traffic_B=lambda g, r: 2 * g.values[r.outputs[0]].size_B),
        "group_norm_backward_from_output": Kernel(
            group_norm_backward_from_output, workspace_B=lambda g, r: _workspace_B(g, r)
        ),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for forward in list(builder.calls(_FORWARD)):
            _add_again(builder, forward)
        if not numerics.admits(Numerics.REASSOCIATED):
            return
        for backward in list(builder.calls(_BACKWARD)):
            site = norm_site(builder, backward, _FORWARDS, _PLACES)
            if site is not None and can_turn_back(builder, site) and is_contiguous(site.y.geometry):
                add_from_output(builder, site, self.name, argument(backward, _MASK), columns=False)


def _add_again(builder: GraphBuilder, forward: Recipe) -> None:
    x, weight, bias = (tensor(forward, i) for i in range(3))
    y, mean, rstd = (result(forward, i) for i in range(3))
    if x is None or weight is None or bias is None or y is None or mean is None or rstd is None:
        return
    dtypes = {r.geometry.dtype for r in (x, weight, bias, builder.read(mean)) if r.geometry is not None}
    if len(dtypes) != 1 or not dtypes <= set(_SAME_BITS) or not is_contiguous(x.geometry):
        return
    reads, args = bound(x, weight, bias, builder.read(mean), builder.read(rstd))
    builder.recipe(forward, "lowtide.group_norm_again", outputs=(y,), reads=reads, args=args)


def _vectors_B(graph: Graph, recipe: Recipe) -> int:
    """Four numbers per sample and channel, and an output's statistics."""
    x = passed(graph, recipe, 0)
    return 0 if x is None else 5 * x.shape[0] * x.shape[1] * (x.extent_B // x.numel)


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """xhat and the gradient of some samples, and some numbers per sample and channel."""
    y = passed(graph, recipe, 1)
    if y is None or not y.numel:
        return 0
    sample_B = y.extent_B // y.shape[0]
    return 2 * max(1, y.shape[0] // 16) * sample_B + 8 * y.shape[1] * (y.extent_B // y.numel)
