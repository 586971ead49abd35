"""Convolutions' gradients one by one: the weight's, after which the input may die, and the input's, without it.

What a convolution's input gradient is made of are the output's gradient and the weight. torch asks for the input all
the same, for its sizes and layout. It gets addresses without bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.call import Arg, Items, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "aten.convolution_backward.default"
OPERANDS = (Ref(0), Ref(1), Ref(2))
_MASK = 10
_TRANSPOSED = 8  # among the arguments of the gradient besides the input
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)


@dataclass(frozen=True, slots=True)
class Backward:
    """A convolution's backward in a program, and what it makes.

    Arguments:
        recipe: that calls torch's operator; it reads the output's gradient, the input and the weight.
        input, weight, bias: ids of the gradients; None for what is not asked for.
    """

    recipe: Recipe
    input: int | None
    weight: int | None
    bias: int | None

    @property
    def constants(self) -> tuple[Arg, ...]:
        """Bias sizes, stride, padding, dilation, transposed, output padding and groups."""
        return self.recipe.args[3:_MASK]


def backward_of(recipe: Recipe) -> Backward | None:
    """Reads a recipe as a convolution's backward; None where it is called otherwise."""
    mask = recipe.args[_MASK] if len(recipe.args) > _MASK else None
    if recipe.op != BACKWARD or recipe.args[:3] != OPERANDS or not isinstance(mask, Items) or recipe.kwargs:
        return None
    made = dict(zip(recipe.paths, recipe.outputs, strict=True))
    found = [made.get((i,)) for i in range(3)]
    if tuple(f is not None for f in found) != mask.items or recipe.reads[1].geometry is None:
        return None
    return Backward(recipe, *found)


def of_weight(builder: GraphBuilder, backward: Backward, op: str = BACKWARD, more: Sequence[Arg] = ()) -> int:
    """Adds a recipe for the gradients of weight and bias.

    Arguments:
        op: torch's operator, or one that takes the same arguments, and more.
    """
    made = [(v, (i,)) for i, v in ((1, backward.weight), (2, backward.bias)) if v is not None]
    return builder.recipe(
        backward.recipe,
        op,
        outputs=[v for v, _ in made],
        reads=backward.recipe.reads,
        args=(*OPERANDS, *backward.constants, Items((False, True, backward.bias is not None)), *more),
        paths=[path for _, path in made],
    )


def of_input(builder: GraphBuilder, backward: Backward, parts: int = 1) -> int:
    """Adds a recipe for the input's gradient, with the bias' where the weight's is not wanted; it reads no input.

    Arguments:
        parts: into which the batch is split; one where the bias' gradient is made as well.
    """
    gradient, given, weight = backward.recipe.reads
    assert given.geometry is not None
    bias = backward.bias if backward.weight is None else None
    made = [(v, (i,)) for i, v in ((0, backward.input), (2, bias)) if v is not None]
    sizes = (Items(given.geometry.shape), Items(given.geometry.stride))
    return builder.recipe(
        backward.recipe,
        "lowtide.convolution_backward_with_input" if parts == 1 else "lowtide.convolution_input_in_parts",
        outputs=[v for v, _ in made],
        reads=(gradient, weight),
        args=(
            Ref(0),
            Ref(1),
            *sizes,
            *backward.constants,
            Items((True, False, bias is not None)),
            *((parts,) if parts > 1 else ()),
        ),
        paths=[path for _, path in made],
    )


def _with_input(
    gradient: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], *constants: object
) -> tuple[Tensor, None, Tensor | None]:
    """The gradients of a convolution that do not need its input's content; see `of_input`."""
    found: tuple[Tensor, None, Tensor | None] = torch.ops.aten.convolution_backward.default(
        gradient, without_bytes(gradient, shape, stride), weight, *constants
    )
    return found


def _input_in_parts(
    gradient: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], *constants_and_parts: object
) -> tuple[Tensor]:
    """The gradient of a convolution's input, part by part of the batch; see `of_input`."""
    *constants, parts = constants_and_parts
    assert isinstance(parts, int)
    whole = gradient.new_empty_strided(shape, stride)
    for ours, theirs in zip(whole.tensor_split(parts), gradient.tensor_split(parts), strict=True):
        ours.copy_(_with_input(theirs, weight, ours.shape, ours.stride(), *constants)[0])
    return (whole,)


def without_bytes(like: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A tensor that has sizes, strides and addresses, and nothing to read there.

    On the CPU its pages are never touched, so the system gives them no memory. Elsewhere all its elements are one,
    where the layout allows that.
    """
    elements = _elements(shape, stride)
    if like.device.type != "cpu" and _is_contiguous(shape, stride):
        return like.new_empty(1).expand(shape)
    if elements == 0 or like.device.type != "cpu":
        return like.new_empty_strided(shape, stride)
    pages = mmap.mmap(-1, elements * like.dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    return torch.frombuffer(pages, dtype=like.dtype).as_strided(shape, stride)


def _elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if n > 1 and s != expected:
            return False
        expected *= n
    return True


def _flops(graph: Graph, recipe: Recipe) -> float:
    turned = bool(recipe.args[_TRANSPOSED])
    return flops_per_operand(passed(graph, recipe, -1 if turned else 0), passed(graph, recipe, 1))


def flops_per_operand(positions: Geometry | None, weight: Geometry | None) -> float:
    """Arithmetic of a forward, or of one gradient: two operations per weight and position.

    Arguments:
        positions: of the output; of the input, if transposed.
    """
    if positions is None or weight is None:
        return 0.0
    count = 2.0 * weight.numel * positions.shape[0]
    for extent in positions.shape[2:]:
        count *= extent
    return count


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Bytes of the stand-in for the input, where it has some."""
    result = graph.values[recipe.outputs[0]].geometry
    if result is None or result.device == "cpu" or _is_contiguous(result.shape, result.stride):
        return 0
    return result.extent_B


def passed(graph: Graph, recipe: Recipe, index: int) -> Geometry | None:
    """What a recipe is passed; for -1 its first result."""
    if index < 0:
        return graph.values[recipe.outputs[0]].geometry
    read = recipe.reads[index]
    return read.geometry or graph.values[read.value].geometry


@final
@dataclass(frozen=True)
class Convolution(AbstractFamily):
    """Weight's and bias' gradient first, then the input's, which leaves the input alone. Exact: the same kernels."""

    name: ClassVar[str] = "convolution"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = {
        "convolution_backward_with_input": Kernel(_with_input, flops=_flops, workspace_B=_workspace_B),
        "convolution_input_in_parts": Kernel(_input_in_parts, flops=_flops, workspace_B=_workspace_B, by_size=True),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for recipe in list(builder.calls(BACKWARD)):
            backward = backward_of(recipe)
            if backward is None or backward.input is None:
                continue
            first = () if backward.weight is None else (of_weight(builder, backward),)
            option = Option("one by one", (*first, of_input(builder, backward)))
            builder.group(self.kind, f"{self.name} {recipe.id}", [recipe.id], [option])
