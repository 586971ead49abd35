"""Saved values in fewer bytes than they have: rounded on purpose, for who asks for it.

The forward is what it was; a backward reads a value that was put away as bytes with a scale per block
(`src/core/blocks.hpp`), and taken out again for as long as it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from msgspec.structs import replace

from lowtide._core import compress as compress_on_core
from lowtide._core import compressed_B
from lowtide._core import decompress as decompress_on_core
from lowtide.ir.call import Const, Items
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, Option, Recipe, Role, Value
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.bits import FLOATS, PIECE, PIECE_B, float_code
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.memory_order import Order, as_argument, dense_order, empty_in_order, in_order, spans

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 256
_LARGEST = 127.0
_MOST_READERS = 4
_LEAST_B = 4096  # below it a value is not worth a choice
_READERS = frozenset(
    {
        *("aten.convolution_backward.default", "aten.mm.default", "aten.bmm.default", "aten.mul.Tensor"),
        *(f"aten.{name}_backward.default" for name in ("gelu", "silu", "mish", "elu", "softplus", "hardswish")),
        *(f"aten.{name}_backward.default" for name in ("sigmoid", "tanh", "hardtanh", "leaky_relu", "threshold")),
        *(f"aten.native_{name}_norm_backward.default" for name in ("batch", "layer", "group")),
        "aten._softmax_backward_data.default",
    }
)
"""Backwards that make of a slightly wrong value a slightly wrong gradient."""


def compress(x: Tensor, order: Order) -> Tensor:
    """Rounds to a byte per element, with a scale per block of 256 that follow each other in an order.

    Returns: bytes. A block with anything that is not finite becomes one without numbers.
    """
    x = in_order(x, order)
    packed = torch.empty(compressed_B(x.numel()), dtype=torch.uint8, device=x.device)
    code = float_code(x)
    if code is None:
        _compress_by_torch(packed, x.view(-1))
    else:
        compress_on_core(packed.data_ptr(), x.data_ptr(), x.numel(), code, torch.get_num_threads())
    return packed


def decompress(packed: Tensor, dtype: Any, shape: Sequence[int], order: Order) -> Tensor:
    """What `compress` was given, rounded: its dtype, its shape, its order."""
    x = empty_in_order(shape, order, torch.empty(0, dtype=dtype, device=packed.device))
    code = float_code(x)
    if code is None:
        _decompress_by_torch(x.permute(tuple(order)).view(-1), packed)
    else:
        decompress_on_core(x.data_ptr(), packed.data_ptr(), x.numel(), code, torch.get_num_threads())
    return x


def _scales(packed: Tensor, count: int) -> Tensor:
    return packed[-(-count // 4) * 4 :].view(torch.float32)


def _compress_by_torch(packed: Tensor, x: Tensor) -> None:
    scales, count = _scales(packed, x.numel()), x.numel()
    packed[count : -(-count // 4) * 4] = 0
    for first, last in spans(count, PIECE):
        near = torch.nn.functional.pad(x[first:last].float(), (0, (first - last) % _BLOCK)).view(-1, _BLOCK)
        largest = near.abs().amax(1, keepdim=True)
        largest = torch.where(largest.isfinite(), largest, torch.full_like(largest, float("nan")))
        factor = torch.where(largest > 0, torch.full_like(largest, _LARGEST) / largest, torch.zeros_like(largest))
        codes = (near * factor).round().to(torch.int8)
        packed[first:last] = codes.view(torch.uint8).view(-1)[: last - first]
        scales[first // _BLOCK : -(-last // _BLOCK)] = largest.view(-1) / _LARGEST


def _decompress_by_torch(x: Tensor, packed: Tensor) -> None:
    scales = _scales(packed, x.numel())
    for first, last in spans(x.numel(), PIECE):
        blocks = scales[first // _BLOCK : -(-last // _BLOCK)].repeat_interleave(_BLOCK)[: last - first]
        x[first:last] = packed[first:last].view(torch.int8).float() * blocks


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Nothing on the processor; a piece where torch does the work."""
    geometry = graph.values[recipe.outputs[0]].geometry
    return 0 if geometry is None or geometry.device == "cpu" else PIECE_B


@final
@dataclass(frozen=True)
class Compression(AbstractFamily):
    """Values of the forward that few backwards read, in a byte per element. Lossy: off by 1/254 of a block's largest.

    A reader with another implementation that does without the value is not asked to read it compressed.
    """

    name: ClassVar[str] = "compression"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = {
        "compress": Kernel(compress, workspace_B=_workspace_B),
        "decompress": Kernel(decompress, workspace_B=_workspace_B),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        if not numerics.admits(Numerics.LOSSY):
            return
        for number in builder.graph.program:
            maker = builder.recipes[number]
            for value in (builder.values[v] for v in maker.outputs):
                readers = _readers(builder, maker, value)
                order = dense_order(value.geometry)
                if not readers or order is None or value.geometry is None:
                    continue
                site = _Site(maker, value, value.geometry, order, readers)
                builder.group(self.kind, f"{self.name} {value.id}", readers, [_option(builder, site)])


@dataclass(frozen=True, slots=True)
class _Site:
    """A value that may be put away, who makes it, and who reads it late."""

    maker: Recipe
    value: Value
    geometry: Geometry
    order: tuple[int, ...]
    readers: tuple[int, ...]


def _readers(builder: GraphBuilder, maker: Recipe, value: Value) -> tuple[int, ...]:
    """The backwards that would read a value compressed; none if it is not to be."""
    geometry = value.geometry
    if geometry is None or geometry.dtype not in FLOATS or value.size_B < _LEAST_B or value.role is not Role.ACTIVATION:
        return ()
    late = [builder.recipes[r] for r in builder.readers.get(value.id, ()) if builder.recipes[r].segment > maker.segment]
    needy = tuple(r.id for r in late if not builder.can_do_without(r.id, value.id))
    if not needy or len(needy) > _MOST_READERS or value.leaves is not None:
        return ()
    known = all(builder.recipes[r].op in _READERS and builder.recipes[r].effect is Effect.PURE for r in needy)
    alike = len({builder.recipes[r].segment for r in needy}) == 1
    return needy if known and alike and builder.may_replace(needy) else ()


def _option(builder: GraphBuilder, site: _Site) -> Option:
    """Put away where it is made, and taken out for those who read it late."""
    geometry, order = site.geometry, as_argument(site.order)
    away = Geometry("uint8", (compressed_B(geometry.numel),), (1,), 0, geometry.device)
    packed, again = builder.value(f"{site.value.name}_bytes", away), builder.value(f"{site.value.name}_again", geometry)
    reads, args = bound(builder.read(site.value.id), order)
    put = builder.recipe(site.maker, "lowtide.compress", outputs=[packed], reads=reads, args=args)
    reads, args = bound(builder.read(packed), Const("dtype", geometry.dtype), Items(geometry.shape), order)
    first = builder.recipes[site.readers[0]]
    recipes = [put, builder.recipe(first, "lowtide.decompress", outputs=[again], reads=reads, args=args)]
    for reader in (builder.recipes[r] for r in site.readers):
        recipes.append(
            builder.recipe(
                reader,
                reader.op,
                outputs=reader.outputs,
                reads=tuple(replace(r, value=again) if r.value == site.value.id else r for r in reader.reads),
                args=reader.args,
                kwargs=reader.kwargs,
                paths=reader.paths,
            )
        )
    return Option(f"{site.value.name} as bytes", tuple(recipes), Numerics.LOSSY)
