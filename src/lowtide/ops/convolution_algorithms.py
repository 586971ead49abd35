"""Convolutions by other means of the same library: part by part of the batch, and by another algorithm or layout.

A convolution's workspace, its operands in the library's own order, is often larger than its result. Part by part of
the batch it is as much smaller. Which algorithm is fastest, and what it allocates, is measured like anything else.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from lowtide.ir.call import Arg, Items
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import ALGORITHMS, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.convolution import (
    BACKWARD,
    OPERANDS,
    Backward,
    backward_of,
    flops_per_operand,
    of_input,
    of_weight,
    passed,
)
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_FORWARD = "aten.convolution.default"
_WORTH_B = 1 << 20
"""Bytes of input and output from which on a workspace is worth bounding."""
_PARTS = 4
_NATIVE, _CHANNELS_LAST = "native", "channels-last"
_CPU_FLOATS = frozenset({"float32", "bfloat16", "float16"})
_CUDA = {
    "benchmarked": {"_enabled": True, "_benchmark": True, "_deterministic": False},
    "deterministic": {"_enabled": True, "_benchmark": False, "_deterministic": True},
    "without cuDNN": {"_enabled": False},
}
_GROUPS = -1  # of the constants of a forward, the last


def _in_parts(given: Tensor, weight: Tensor, bias: Tensor | None, *constants_and_parts: object) -> Tensor:
    """A convolution, part by part of the batch."""
    *constants, parts = constants_and_parts
    assert isinstance(parts, int)
    call = torch.ops.aten.convolution.default
    pieces = given.tensor_split(parts)
    first: Tensor = call(pieces[0], weight, bias, *constants)
    whole = first.new_empty_strided((given.shape[0], *first.shape[1:]), first.stride())
    places = whole.tensor_split(parts)
    places[0].copy_(first)
    del first
    for place, piece in zip(places[1:], pieces[1:], strict=True):
        place.copy_(call(piece, weight, bias, *constants))
    return whole


def _weight_in_parts(
    gradient: Tensor, given: Tensor, weight: Tensor, *constants_and_parts: object
) -> tuple[None, Tensor, Tensor | None]:
    """The gradients of weight and bias, summed over parts of the batch."""
    *constants, parts = constants_and_parts
    assert isinstance(parts, int)
    call = torch.ops.aten.convolution_backward.default
    whole: tuple[None, Tensor, Tensor | None] | None = None
    for theirs, ours in zip(gradient.tensor_split(parts), given.tensor_split(parts), strict=True):
        found = call(theirs, ours, weight, *constants)
        if whole is None:
            whole = found
            continue
        for total, part in zip(whole[1:], found[1:], strict=True):
            if total is not None:
                total.add_(part)
    assert whole is not None
    return whole


def _forward_by(given: Tensor, weight: Tensor, bias: Tensor | None, *constants_and_algorithm: object) -> Tensor:
    """A convolution by another algorithm or layout; the result is laid out as it would have been."""
    *constants, algorithm = constants_and_algorithm
    with _setting(algorithm):
        layout = _layout(given, algorithm)
        found: Tensor = torch.ops.aten.convolution.default(_as(given, layout), _as(weight, layout), bias, *constants)
    return found if layout is None else _in_rows(found)


def _backward_by(
    gradient: Tensor, given: Tensor, weight: Tensor, *constants_and_algorithm: object
) -> tuple[Tensor | None, ...]:
    """A convolution's gradients by another algorithm or layout."""
    *constants, algorithm = constants_and_algorithm
    with _setting(algorithm):
        layout = _layout(given, algorithm)
        found: Sequence[Tensor | None] = torch.ops.aten.convolution_backward.default(
            _as(gradient, layout), _as(given, layout), _as(weight, layout), *constants
        )
    return tuple(f if f is None or layout is None else _in_rows(f) for f in found)


def _in_rows(tensor: Tensor) -> Tensor:
    """The same elements, the last dimension's next to each other; strides of single elements as well."""
    return tensor.contiguous().view(-1).view(tensor.shape)


@contextlib.contextmanager
def _setting(algorithm: object) -> Iterator[None]:
    """torch's global choice among its libraries' algorithms, for one call."""
    wanted = {"_enabled": False} if algorithm == _NATIVE else _CUDA.get(str(algorithm), {})
    if not wanted:
        yield
        return
    library: Any = torch.backends.mkldnn if algorithm == _NATIVE else torch.backends.cudnn
    names = list(inspect.signature(library.set_flags).parameters)
    before = dict(zip(names, library.set_flags(**{**dict.fromkeys(names), **wanted}), strict=True))
    try:
        yield
    finally:
        library.set_flags(**{**dict.fromkeys(names), **{name: before[name] for name in wanted}})


def _layout(given: Tensor, algorithm: object) -> Any:
    if algorithm != _CHANNELS_LAST:
        return None
    return torch.channels_last if given.dim() == 4 else torch.channels_last_3d


def _as(tensor: Tensor, layout: Any) -> Tensor:
    return tensor if layout is None else tensor.contiguous(memory_format=layout)


def _forward_flops(graph: Graph, recipe: Recipe) -> float:
    return flops_per_operand(passed(graph, recipe, 0 if recipe.args[6] else -1), passed(graph, recipe, 1))


def _backward_flops(graph: Graph, recipe: Recipe) -> float:
    """As the forward's, for the input's and for the weight's gradient, where they are made."""
    once = flops_per_operand(passed(graph, recipe, 1 if recipe.args[7] else 0), passed(graph, recipe, 2))
    return once * sum(path in ((0,), (1,)) for path in recipe.paths)


@final
@dataclass(frozen=True)
class ConvolutionAlgorithms(AbstractFamily):
    """Parts of the batch, exact for what is made per image; other algorithms and layouts, which sum otherwise."""

    name: ClassVar[str] = "convolution algorithms"
    kind: ClassVar[str] = ALGORITHMS
    kernels: ClassVar[Mapping[str, Kernel]] = {
        "convolution_in_parts": Kernel(_in_parts, flops=_forward_flops, by_size=True),
        "convolution_weight_in_parts": Kernel(_weight_in_parts, flops=_backward_flops),
        "convolution_by": Kernel(_forward_by, flops=_forward_flops),
        "convolution_backward_by": Kernel(_backward_by, flops=_backward_flops),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for recipe in list(builder.calls(_FORWARD)):
            options = list(_forwards(builder, recipe, numerics))
            builder.group(self.kind, f"{self.name} {recipe.id}", [recipe.id], options)
        for recipe in list(builder.calls(BACKWARD)):
            backward = backward_of(recipe)
            if backward is not None:
                options = list(_backwards(builder, backward, numerics))
                builder.group(self.kind, f"{self.name} {recipe.id}", [recipe.id], options)


def _forwards(builder: GraphBuilder, recipe: Recipe, numerics: Numerics) -> Iterator[Option]:
    given, result = passed(builder.graph, recipe, 0), passed(builder.graph, recipe, -1)
    if given is None or result is None or recipe.args[:2] != OPERANDS[:2] or recipe.kwargs:
        return
    parts = 0 if _is_product(passed(builder.graph, recipe, 1), recipe.args[3:6]) else _parts(given, result)
    if parts:
        yield Option(f"in {parts} parts", (_like(builder, recipe, "lowtide.convolution_in_parts", parts),))
    if numerics.admits(Numerics.REASSOCIATED):
        for algorithm in _algorithms(given, recipe.args[_GROUPS]):
            yield Option(
                algorithm, (_like(builder, recipe, "lowtide.convolution_by", algorithm),), Numerics.REASSOCIATED
            )


def _backwards(builder: GraphBuilder, backward: Backward, numerics: Numerics) -> Iterator[Option]:
    recipe = backward.recipe
    gradient, given = passed(builder.graph, recipe, 0), passed(builder.graph, recipe, 1)
    if given is None or gradient is None:
        return
    is_product = _is_product(passed(builder.graph, recipe, 2), recipe.args[4:7])
    parts = 0 if is_product else _parts(given, gradient)
    whole_bias = backward.weight is None and backward.bias is not None
    if parts and backward.input is not None and not whole_bias:
        weight = () if backward.weight is None else (of_weight(builder, backward),)
        yield Option(f"input's in {parts} parts", (*weight, of_input(builder, backward, parts)))
    if not numerics.admits(Numerics.REASSOCIATED) or backward.weight is None:
        return
    if parts:
        weight = (of_weight(builder, backward, "lowtide.convolution_weight_in_parts", (parts,)),)
        rest = () if backward.input is None else (of_input(builder, backward, parts),)
        yield Option(f"in {parts} parts", (*weight, *rest), Numerics.REASSOCIATED)
    for algorithm in _algorithms(given, recipe.args[9] if is_product else None):
        yield Option(
            algorithm, (_like(builder, recipe, "lowtide.convolution_backward_by", algorithm),), Numerics.REASSOCIATED
        )


def _is_product(weight: Geometry | None, window: Sequence[Arg]) -> bool:
    """Whether it is a matrix product, which needs no workspace.

    Arguments:
        window: stride, padding and dilation.
    """
    stride, padding, _ = window
    return (
        weight is not None
        and all(n == 1 for n in weight.shape[2:])
        and isinstance(stride, Items)
        and all(s == 1 for s in stride.items)
        and isinstance(padding, Items)
        and not any(padding.items)
    )


def _parts(given: Geometry, result: Geometry) -> int:
    """Into how many parts to split a batch; 0 where it is not worth it."""
    batch = min(given.shape[0], result.shape[0]) if len(given.shape) > 2 else 0
    if batch < 2 or given.device != "cpu" or given.extent_B + result.extent_B < _WORTH_B:
        return 0
    return min(batch, _PARTS)


def _algorithms(given: Geometry, groups: Arg) -> tuple[str, ...]:
    """Other algorithms and layouts on a device.

    Arguments:
        groups: where native ones are worth trying; they convolve several groups one by one, which takes too long.
    """
    if given.device == "cuda":
        return tuple(_CUDA)
    if given.device != "cpu" or given.dtype not in _CPU_FLOATS:
        return ()
    dense = len(given.shape) in (4, 5) and min(given.stride) == given.stride[-1]
    return (*((_NATIVE,) if groups == 1 else ()), *((_CHANNELS_LAST,) if dense else ()))


def _like(builder: GraphBuilder, recipe: Recipe, op: str, more: Arg) -> int:
    """The same call of another operator, with one more argument at its end."""
    return builder.recipe(
        recipe, op, outputs=recipe.outputs, reads=recipe.reads, args=(*recipe.args, more), paths=recipe.paths
    )
