"""Dropout's gradient from packed bits: an eighth of the mask, and none of the weights that torch makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide._core import rounded, scale_gradient_by_flags
from lowtide.ir.call import Arg, Const, Read, Ref
from lowtide.ir.graph import Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.bits import FLOATS, KERNELS, bits_geometry, converted, float_code, workspace_B
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.memory_order import Order, as_argument, dense_order, in_order

if TYPE_CHECKING:
    from torch import Tensor

_BACKWARD = "aten.native_dropout_backward.default"
_PRODUCT = "aten.mul.Tensor"


def scaled_gradient_by_flags(
    gradient: Tensor,
    flags: Tensor,
    on: float,
    off: float,
    order: Order,
    as_saved: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient times one factor where a flag is set, and times another elsewhere; see `bits.masked_gradient`."""
    rows = in_order(flags, order)

    def on_core(to: Tensor, of: Tensor) -> None:
        code, threads = float_code(of), torch.get_num_threads()
        assert code is not None
        scale_gradient_by_flags(to.data_ptr(), of.data_ptr(), rows.data_ptr(), of.numel(), code, on, off, threads)

    def by_torch(piece: Tensor, first: int, last: int) -> Tensor:
        return torch.where(rows.view(-1)[first:last], piece * on, piece * off)

    return converted(gradient, order, as_saved, out, on_core, by_torch)


@dataclass(frozen=True, slots=True)
class _Gradient:
    """Where the program makes dropout's gradient.

    Arguments:
        recipes: that make it, the last of them the gradient itself.
        gradient, mask: what they read.
        scale: what the kept elements are multiplied by, as torch rounds it.
    """

    recipes: tuple[int, ...]
    gradient: Read
    mask: Read
    scale: float


@final
@dataclass(frozen=True)
class Dropout(AbstractFamily):
    """From the mask in one pass, or from its bits. Exact: the factor is rounded as torch rounds it."""

    name: ClassVar[str] = "dropout"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = {
        **KERNELS,
        "scaled_gradient_by_flags": Kernel(scaled_gradient_by_flags, workspace_B=workspace_B),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for recipe in list(builder.calls(_BACKWARD, _PRODUCT)):
            found = _plain(recipe) if recipe.op == _BACKWARD else _as_eager(builder, recipe)
            if found is not None and builder.may_replace(found.recipes):
                builder.group(self.kind, f"{self.name} {recipe.id}", found.recipes, _options(builder, recipe, found))


def _plain(recipe: Recipe) -> _Gradient | None:
    match recipe.args:
        case (Ref(index=g), Ref(index=m), int() | float() as scale):
            gradient, mask = recipe.reads[g], recipe.reads[m]
        case _:
            return None
    geometry = gradient.geometry
    if geometry is None or geometry.dtype not in FLOATS:
        return None
    if geometry.device == "cpu":  # elsewhere one kernel multiplies by the scale in a wider type
        scale = rounded(scale, FLOATS[geometry.dtype])
    return _Gradient((recipe.id,), gradient, mask, scale)


def _as_eager(builder: GraphBuilder, recipe: Recipe) -> _Gradient | None:
    """`gradient * (mask.to(dtype) / keep)`, as capture writes it below 32 bits."""
    if recipe.args != (Ref(0), Ref(1)) or recipe.kwargs:
        return None
    weight = _only_link(builder, recipe, recipe.reads[1], "aten.div.Scalar")
    if weight is None or len(weight.args) != 2 or not isinstance(keep := weight.args[1], int | float) or keep <= 0:
        return None
    copy = _only_link(builder, weight, weight.reads[0], "aten._to_copy.default")
    geometry = builder.values[weight.outputs[0]].geometry
    if copy is None or geometry is None or geometry.dtype not in FLOATS:
        return None
    if copy.kwargs != (("dtype", Const("dtype", geometry.dtype)),) or builder.made_by(copy.reads[0].value) is None:
        return None
    quotient = rounded(1.0 / rounded(keep, FLOATS["float32"]), FLOATS["float32"])
    recipes = (copy.id, weight.id, recipe.id)
    return _Gradient(recipes, recipe.reads[0], copy.reads[0], rounded(quotient, FLOATS[geometry.dtype]))


def _only_link(builder: GraphBuilder, reader: Recipe, read: Read, op: str) -> Recipe | None:
    """The recipe that makes what another one reads, if it is of an operator and nobody else reads that."""
    maker = builder.made_by(read.value)
    if maker is None or maker.op != op or read.views or builder.readers[read.value] != [reader.id]:
        return None
    return maker if builder.values[read.value].leaves is None else None


def _options(builder: GraphBuilder, backward: Recipe, found: _Gradient) -> list[Option]:
    maker, geometry, order = builder.made_by(found.mask.value), found.mask.geometry, dense_order(found.mask.geometry)
    if maker is None or geometry is None or geometry.dtype != "bool" or order is None or geometry.numel == 0:
        return []
    if found.gradient.geometry is None or found.gradient.geometry.shape != geometry.shape:
        return []
    factors: tuple[Arg, ...] = (found.scale, 0.0, as_argument(order), False)
    reads, args = bound(found.gradient, found.mask, *factors)
    once = builder.recipe(
        backward, "lowtide.scaled_gradient_by_flags", outputs=backward.outputs, reads=reads, args=args
    )
    options = [Option("from mask in one pass", (once,))]
    if maker.segment < backward.segment:
        bits = builder.value(f"{builder.values[found.mask.value].name}_bits", bits_geometry(geometry))
        reads, args = bound(found.mask, as_argument(order))
        pack = builder.recipe(maker, "lowtide.pack_flags", outputs=[bits], reads=reads, args=args)
        reads, args = bound(found.gradient, builder.read(bits), *factors)
        apply = builder.recipe(backward, "lowtide.scaled_gradient", outputs=backward.outputs, reads=reads, args=args)
        options.append(Option("from bits", (pack, apply)))
    return options
