"""Operators over their dying input: the output takes over the storage of what is not wanted any more.

The arithmetic is the same, element by element or row by row, so results are bit for bit those of the plain operator.
Every candidate is a recipe in no group: a plan takes it wherever the value dies in that very run, and runs the plain
one everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.call import Ref
from lowtide.ir.compiled_names import may_overwrite, overwriting
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Recipe, Role, Takeover, Value
from lowtide.ir.in_place import has_the_bytes
from lowtide.ir.layout import SMALL_B
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import IN_PLACE, AbstractFamily
from lowtide.ops.builder import GraphBuilder

_METHODS = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "reciprocal", "round", "rsqrt"),
    *("sigmoid", "sign", "sin", "sqrt", "tanh", "trunc"),
    *("relu", "silu", "gelu", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "mish"),
    *("clamp", "clamp_min", "clamp_max"),
    *("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar", "pow.Tensor_Scalar", "masked_fill.Scalar"),
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "addcmul", "addcdiv"),
)
"""Operators with a method that overwrites the first argument."""
_SECOND = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
"""Operators that may write over their second argument as well."""
_BACKWARD = (
    *("elu_backward", "gelu_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward"),
    *("sigmoid_backward", "silu_backward", "softplus_backward", "tanh_backward", "threshold_backward"),
)
"""Operators that may write over the gradient, their first argument."""
_ROWS = {
    "_softmax": "out",
    "_log_softmax": "out",
    "_softmax_backward_data": "grad_input",
    "_log_softmax_backward_data": "out",
}
"""Operators that have read a row before they write to it; and the name of their result's argument."""
_TILED_OPERANDS = 4
"""Of a run of operators (`lowtide.ops.tiles`), how many tensors it may write over: the first ones it is given."""
_OWN = (
    *("masked_gradient", "scaled_gradient", "masked_scaled_gradient", "scaled_gradient_by_flags"),
    "rms_norm_backward",
)
"""Kernels of ours that may write over the gradient, their first argument."""
_METHOD_NAMES = {"pow.Tensor_Scalar": "pow_.Scalar"}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """How an operator runs over one of its arguments.

    Arguments:
        op: what is called.
        over: which positional argument is overwritten.
        into: name of the argument that says where the result goes; None for a method that overwrites its first one.
        rows: whether it does so row by row: on the CPU, in the order of the last dimension.
    """

    op: str
    over: int = 0
    into: str | None = None
    rows: bool = False


def _overload(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def _method(name: str) -> str:
    plain, _, overload = name.partition(".")
    return f"aten.{_METHOD_NAMES.get(name) or f'{plain}_.' + (overload or 'default')}"


def _candidates() -> dict[str, tuple[_Candidate, ...]]:
    candidates: dict[str, tuple[_Candidate, ...]] = {_overload(n): (_Candidate(_method(n)),) for n in _METHODS}
    for name in _SECOND:
        candidates[_overload(name)] += (_Candidate(f"aten.{name.partition('.')[0]}.out", 1, "out"),)
    for name in _BACKWARD:
        candidates[_overload(name)] = (_Candidate(f"aten.{name}.grad_input", 0, "grad_input"),)
    for name, into in _ROWS.items():
        candidates[_overload(name)] = (_Candidate(f"aten.{name}.out", 0, into, rows=True),)
    for name in _OWN:
        candidates[f"lowtide.{name}"] = (_Candidate(f"lowtide.{name}", 0, "out"),)
    for name in ("lowtide.tiled", "lowtide.tiled_by_rows"):
        candidates[name] = tuple(_Candidate(name, 2 + i, "into") for i in range(_TILED_OPERANDS))
    return candidates


CANDIDATES = _candidates()
"""By operator, how it may run in place."""


@final
@dataclass(frozen=True)
class InPlace(AbstractFamily):
    """In place wherever the input's bytes are exactly the output's. Exact: the same arithmetic per element."""

    name: ClassVar[str] = "in-place"
    kind: ClassVar[str] = IN_PLACE

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        deeds = {_deed(builder.recipes[r]) for r in builder.graph.program}
        program = set(builder.graph.program)
        for recipe in list(builder.recipes):
            if recipe.effect is not Effect.PURE or recipe.state is not None or recipe.consumes:
                continue
            if recipe.id in program or _deed(recipe) not in deeds:
                for candidate in CANDIDATES.get(recipe.op, ()):
                    _add(builder, recipe, candidate)
                for given, made in may_overwrite(recipe.op):
                    _add_compiled(builder, recipe, given, made)


def _add(builder: GraphBuilder, recipe: Recipe, candidate: _Candidate) -> None:
    over = recipe.args[candidate.over] if candidate.over < len(recipe.args) else None
    if not isinstance(over, Ref) or len(recipe.outputs) != 1 or recipe.paths not in ((), ((),)):
        return
    value, heir = builder.values[recipe.reads[over.index].value], builder.values[recipe.outputs[0]]
    if not _may_pass(value, heir) or not has_the_bytes(recipe, value, heir):
        return
    if candidate.rows and not _in_rows(heir.geometry):
        return
    into = () if candidate.into is None else ((candidate.into, over),)
    builder.recipe(
        recipe,
        candidate.op,
        outputs=recipe.outputs,
        reads=recipe.reads,
        args=recipe.args,
        kwargs=(*recipe.kwargs, *into),
        consumes=(Takeover(value.id, 0),),
    )


def _add_compiled(builder: GraphBuilder, recipe: Recipe, given: int, made: int) -> None:
    """A compiled kernel over a tensor that it is given: its compiler says that it reads and writes the same places."""
    if given >= len(recipe.reads) or made >= len(recipe.outputs) or recipe.reads[given].views:
        return
    value, heir = builder.values[recipe.reads[given].value], builder.values[recipe.outputs[made]]
    alone = sum(read.value == value.id for read in recipe.reads) == 1
    known = value.geometry is not None and heir.geometry is not None
    if not (alone and known and _may_pass(value, heir) and value.size_B == heir.size_B):
        return
    builder.recipe(
        recipe,
        overwriting(recipe.op, given, made),
        outputs=recipe.outputs,
        reads=recipe.reads,
        args=recipe.args,
        kwargs=recipe.kwargs,
        paths=recipe.paths,
        consumes=(Takeover(value.id, made),),
    )


def _may_pass(value: Value, heir: Value) -> bool:
    """Whether the storage of one value may become another's: nobody outside the graph has the first one.

    What the caller gets from a forward is to be a tensor of its own, not a view of what lived in its bytes before.
    """
    inside = not value.persistent and value.arrives is None and value.leaves is None
    return inside and value.size_B >= SMALL_B and (heir.leaves is None or heir.role is Role.GRADIENT)


def _in_rows(geometry: Geometry | None) -> bool:
    """Whether a tensor is the processor's, and as such operators make it that know no other order."""
    if geometry is None or geometry.device != "cpu":
        return False
    strides = [s for n, s in zip(geometry.shape, geometry.stride, strict=True) if n > 1]
    return strides == sorted(strides, reverse=True)


def _deed(recipe: Recipe) -> tuple[tuple[int, ...], frozenset[int]]:
    """What is made, of what: another option's recipe that makes the same is left alone, and keeps its bits."""
    return recipe.outputs, frozenset(recipe.read_values)
