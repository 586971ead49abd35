"""Batch norm's gradient over the gradient that it is made from, some channels at a time.

Channels do not know of each other, so torch's kernel makes the same bits of a few of them as of all. Where batch norm's
backward is what needs most memory, as in most networks of convolutions, this needs two tensors there instead of three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Recipe, Role, Takeover
from lowtide.ir.in_place import has_the_bytes
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import passed
from lowtide.ops.base import IN_PLACE, AbstractFamily, Kernel
from lowtide.ops.batch_norm import Gradients, traffic_B, turned_back
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.norm_site import is_contiguous, result, tensor
from lowtide.ops.scale import faint_channels

if TYPE_CHECKING:
    from torch import Tensor

_CANDIDATES = {
    "aten.native_batch_norm_backward.default": "lowtide.batch_norm_backward_over",
    "lowtide.batch_norm_backward_from_output": "lowtide.batch_norm_backward_from_output_over",
}
_FEWEST, _SHARE, _AT_ONCE_B = 4, 16, 2**20  # channels that are worked on together
_SMALLEST = 256  # elements of a plane: below, copies in strides take longer than the arithmetic


def batch_norm_backward_over(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    invstd: Tensor | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> Gradients:
    """As `aten.native_batch_norm_backward`, with the input's gradient over the outer one. Exact for planes in order."""

    def make(part: Tensor, own: slice) -> Gradients:
        vectors = (v if v is None else v[own] for v in (weight, running_mean, running_var, mean, invstd))
        source = x[:, own].contiguous()
        made: Gradients = torch.ops.aten.native_batch_norm_backward(part, source, *vectors, train, eps, list(mask))
        return made

    return _in_parts(gradient, make, mask)


def batch_norm_backward_from_output_over(
    gradient: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    aside: Tensor,
    mask: Sequence[bool],
) -> Gradients:
    """As `batch_norm_backward_from_output`, with the input's gradient over the outer one."""
    rows = {c: aside[row] for row, c in enumerate(faint_channels(weight, bias))}

    def make(part: Tensor, own: slice) -> Gradients:
        faint = [(c - own.start, rows[c]) for c in range(own.start, own.stop) if c in rows]
        shift = None if bias is None else bias[own]
        return turned_back(part, y[:, own].contiguous(), weight[own], shift, mean[own], invstd[own], faint, mask)

    return _in_parts(gradient, make, mask)


def _in_parts(gradient: Tensor, make: Callable[[Tensor, slice], Gradients], mask: Sequence[bool]) -> Gradients:
    """Replaces a gradient some channels at a time, and joins what is made with it."""
    channels = gradient.shape[1]
    step = _at_once(channels, gradient.numel() * gradient.element_size())
    sums: tuple[list[Tensor], list[Tensor]] = [], []
    for begin in range(0, channels, step):
        own = slice(begin, min(begin + step, channels))
        first, *others = make(gradient[:, own].contiguous(), own)
        if first is not None and mask[0]:
            gradient[:, own].copy_(first)
        for found, other in zip(sums, others, strict=True):
            if other is not None:
                found.append(other)
    scales, shifts = (torch.cat(found) if wanted else None for found, wanted in zip(sums, mask[1:], strict=True))
    return gradient, scales, shifts


def _at_once(channels: int, size_B: int) -> int:
    """How many channels to work on together: few, but enough for the processor's cores and for its cache."""
    return min(channels, max(_FEWEST, channels // _SHARE, _AT_ONCE_B * channels // max(1, size_B)))


@final
@dataclass(frozen=True)
class BatchNormInPlace(AbstractFamily):
    """In place where the outer gradient's bytes are exactly the inner one's. Exact: the same arithmetic per channel."""

    name: ClassVar[str] = "batch norm in place"
    kind: ClassVar[str] = IN_PLACE
    kernels: ClassVar = {
        "batch_norm_backward_over": Kernel(
            batch_norm_backward_over, traffic_B=traffic_B, workspace_B=lambda g, r: _workspace_B(g, r)
        ),
        "batch_norm_backward_from_output_over": Kernel(
            batch_norm_backward_from_output_over, traffic_B=traffic_B, workspace_B=lambda g, r: _workspace_B(g, r)
        ),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # as exact as what it stands for
        for recipe in list(builder.recipes):
            if recipe.op in _CANDIDATES:
                _add(builder, recipe)


def _add(builder: GraphBuilder, recipe: Recipe) -> None:
    gradient, source, inner = tensor(recipe, 0), tensor(recipe, 1), result(recipe, 0)
    if gradient is None or source is None or inner is None:
        return
    outer, heir = builder.values[gradient.value], builder.values[inner]
    if outer.persistent or outer.arrives is not None or outer.leaves is not None:
        return
    if not (_in_planes(gradient.geometry) and _in_planes(source.geometry) and has_the_bytes(recipe, outer, heir)):
        return
    if heir.leaves is not None and heir.role is not Role.GRADIENT:
        return
    builder.recipe(
        recipe,
        _CANDIDATES[recipe.op],
        outputs=recipe.outputs,
        reads=recipe.reads,
        args=recipe.args,
        paths=recipe.paths,
        consumes=(Takeover(outer.id, recipe.outputs.index(inner)),),
    )


def _in_planes(geometry: Geometry | None) -> bool:
    """Whether a tensor's planes are large, and lie in order: torch goes through anything else in another order."""
    if geometry is None or len(geometry.shape) < 3 or not is_contiguous(geometry):
        return False
    return geometry.numel >= _SMALLEST * geometry.shape[0] * geometry.shape[1]


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Three tensors of the channels that are worked on together, and the vectors of all."""
    gradient = passed(graph, recipe, 0)
    if gradient is None or not gradient.numel:
        return 0
    channels = gradient.shape[1]
    return -(-3 * gradient.extent_B * _at_once(channels, gradient.extent_B) // channels) + 32 * channels
