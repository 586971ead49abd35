"""Maximum pooling whose backward reads a few bits per result, and neither the input nor 64-bit indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.call import Arg, Items, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.bits import FLOATS, bits_geometry
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.memory_order import follows
from lowtide.ops.windows import KERNELS, Pool

_POOLS = {f"aten.max_pool{n}d_with_indices_backward.default": f"aten.max_pool{n}d_with_indices.default" for n in (2, 3)}
"""Backward -> forward."""


@final
@dataclass(frozen=True)
class Pooling(AbstractFamily):
    """From the indices alone, from packed ones, or packed at once so that indices never are. Exact.

    torch's backward asks the input for its shape only. Gradients are added in torch's order.
    """

    name: ClassVar[str] = "pooling"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = KERNELS

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for backward in list(builder.calls(*_POOLS)):
            forward = _forward(builder, backward)
            pool = None if forward is None else _pool(builder, forward, backward)
            if forward is None or pool is None or not builder.may_replace((forward.id, backward.id)):
                continue
            options = _options(builder, forward, backward, pool)
            builder.group(self.kind, f"{self.name} {backward.id}", (forward.id, backward.id), options)


def _forward(builder: GraphBuilder, backward: Recipe) -> Recipe | None:
    """The pooling whose indices a backward reads as they are."""
    marks = backward.args[7] if len(backward.args) == 8 and not backward.kwargs else None
    if not isinstance(marks, Ref) or not isinstance(backward.args[0], Ref) or backward.reads[marks.index].views:
        return None
    maker = builder.made_by(backward.reads[marks.index].value)
    if maker is None or maker.op != _POOLS[backward.op] or len(maker.outputs) != 2 or maker.kwargs:
        return None
    return maker if maker.outputs[1] == backward.reads[marks.index].value else None


def _pool(builder: GraphBuilder, forward: Recipe, backward: Recipe) -> Pool | None:
    """What is pooled how, if the core can pack it and all tensors lie alike."""
    x, y, out = (
        forward.reads[0].geometry,
        *(builder.values[v].geometry for v in (forward.outputs[0], backward.outputs[0])),
    )
    if x is None or y is None or out is None or x.dtype not in FLOATS or 0 in x.shape:
        return None
    spatial = int(backward.op.removeprefix("aten.max_pool")[0])
    kernel, stride, padding, dilation = (_extents(a, spatial) for a in backward.args[2:6])
    if kernel is None or padding is None or dilation is None or not isinstance(backward.args[6], bool):
        return None
    channels_last = is_channels_last(y)
    pool = Pool(x.shape, y.shape, kernel, stride or kernel, padding, dilation, backward.args[6], channels_last)
    if not follows(y, pool.order) or not follows(out, pool.order) or pool.leading not in (1, 2):
        return None
    try:
        pool.windows()
    except ValueError:  # windows that are wider than the input, or of too many taps
        return None
    return pool


def is_channels_last(geometry: Geometry) -> bool:
    """Whether channels lie innermost; where both orders are the same, strides tell what torch takes it for."""
    rows = [1]
    for extent in reversed(geometry.shape[1:]):
        rows.append(rows[-1] * extent)
    return geometry.stride != tuple(reversed(rows)) and len(geometry.shape) > 3 and geometry.stride[1] == 1


def _extents(arg: Arg, spatial: int) -> tuple[int, ...] | None:
    """One number per dimension; None where none is given."""
    if not isinstance(arg, Items):
        return None
    numbers = tuple(n for n in arg.items if isinstance(n, int))
    return numbers * spatial if len(numbers) == 1 else numbers if len(numbers) == spatial else None


def _options(builder: GraphBuilder, forward: Recipe, backward: Recipe, pool: Pool) -> list[Option]:
    y, indices = forward.outputs
    gradient = backward.reads[0 if not isinstance(backward.args[0], Ref) else backward.args[0].index]
    reads, args = bound(gradient, builder.read(indices), *pool.arguments())
    plain = builder.recipe(
        backward, "lowtide.pool_gradient_from_indices", outputs=backward.outputs, reads=reads, args=args
    )
    options = [Option("from indices", (forward.id, plain))]
    geometry = builder.values[indices].geometry
    if geometry is None or forward.segment == backward.segment:
        return options
    codes = builder.value(f"{builder.values[indices].name}_bits", bits_geometry(geometry, pool.windows().width))
    reads, args = bound(gradient, builder.read(codes), *pool.arguments())
    apply = builder.recipe(backward, "lowtide.pool_gradient", outputs=backward.outputs, reads=reads, args=args)
    reads, args = bound(builder.read(indices), *pool.arguments())
    pack = builder.recipe(forward, "lowtide.pack_pool_indices", outputs=[codes], reads=reads, args=args)
    options.append(Option("from packed indices", (forward.id, pack, apply)))
    if builder.readers[indices] == [backward.id] and builder.values[indices].leaves is None:
        codes = builder.value(f"{builder.values[indices].name}_codes", bits_geometry(geometry, pool.windows().width))
        reads, args = bound(forward.reads[0], *pool.arguments())
        both = builder.recipe(forward, "lowtide.max_pool_packed", outputs=[y, codes], reads=reads, args=args)
        reads, args = bound(gradient, builder.read(codes), *pool.arguments())
        apply = builder.recipe(backward, "lowtide.pool_gradient", outputs=backward.outputs, reads=reads, args=args)
        options.append(Option("packed at once", (both, apply)))
    return options
