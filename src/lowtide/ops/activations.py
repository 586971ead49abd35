"""Gradients of activations from less than torch keeps: one bit per element, or whichever of input and output is there.

A backward that only asks on which side of a number its saved value lies does with the answer: a bit, packed when the
value is made. And where input and output lie on the same side, either will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from lowtide._core import rounded
from lowtide.ir.call import Arg, Read, Ref
from lowtide.ir.graph import Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.bits import FLOATS, KERNELS, bits_geometry
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.memory_order import as_argument, dense_order

_SIXTH = rounded(1.0 / 6.0, FLOATS["float32"])  # hardsigmoid's slope, of every dtype
_Numbers = tuple[float, ...]
_Agrees = Callable[[_Numbers, _Numbers, str], bool]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a backward asks of every element of its saved value, and what makes a gradient of the answers.

    `as_saved`: whether torch lays out its result as the saved value; else as the gradient.
    """

    question: str
    low: float
    high: float
    kernel: str
    factors: _Numbers = ()
    as_saved: bool = True


@dataclass(frozen=True, slots=True)
class _Form:
    """How a backward may run.

    Arguments:
        answer: what it asks, given its numbers; None where one bit is not enough.
        forwards: operators whose input and output serve it alike, each with the condition: of its own numbers, the
            backward's, and the dtype.
        saved: position of the saved value among the arguments.
        told: position of the argument that says whether the saved value is the output; None where it is all the same.
        numerics: how far the gradients from input and from output are apart.
    """

    answer: Callable[[_Numbers], _Answer] | None = None
    forwards: Mapping[str, _Agrees] = field(default_factory=dict)
    saved: int = 1
    told: int | None = None
    numerics: Numerics = Numerics.EXACT


def _relu(own: _Numbers, numbers: _Numbers, dtype: str) -> bool:  # noqa: ARG001
    return numbers == (0,)


def _threshold(own: _Numbers, numbers: _Numbers, dtype: str) -> bool:
    """What is put in the place of small elements is small itself."""
    return own[:1] == numbers and rounded(own[1], FLOATS[dtype]) <= _compared(own[0], dtype)


def _hardtanh(own: _Numbers, numbers: _Numbers, dtype: str) -> bool:
    """Outputs at a bound compare equal to it: 16-bit outputs are rounded, the bounds they are compared with are not."""
    return (own or (-1, 1)) == numbers and all(rounded(n, FLOATS[dtype]) == _compared(n, dtype) for n in numbers)


def _leaky_relu(own: _Numbers, numbers: _Numbers, dtype: str) -> bool:  # noqa: ARG001
    return (own or (0.01,)) == numbers and numbers[0] >= 0


def _elu(own: _Numbers, numbers: _Numbers, dtype: str) -> bool:  # noqa: ARG001
    return (*own, 1, 1, 1)[:3] == numbers and all(n > 0 for n in numbers)


def _compared(number: float, dtype: str) -> float:
    """A number in the type in which elements are compared."""
    return rounded(number, FLOATS["float64" if dtype == "float64" else "float32"])


_FORMS = {
    "aten.threshold_backward.default": _Form(
        lambda n: _Answer("above", n[0], 0.0, "masked_gradient"),
        {"aten.relu.default": _relu, "aten.threshold.default": _threshold},
    ),
    "aten.hardtanh_backward.default": _Form(
        lambda n: _Answer("within", n[0], n[1], "masked_gradient", as_saved=False), {"aten.hardtanh.default": _hardtanh}
    ),
    "aten.leaky_relu_backward.default": _Form(
        lambda n: _Answer("greater", 0.0, 0.0, "scaled_gradient", (1.0, n[0])), {"aten.leaky_relu.default": _leaky_relu}
    ),
    "aten.hardsigmoid_backward.default": _Form(
        lambda n: _Answer("within", -3.0, 3.0, "masked_scaled_gradient", (_SIXTH,), as_saved=False)  # noqa: ARG005
    ),
    "aten.elu_backward.default": _Form(
        forwards={"aten.elu.default": _elu}, saved=5, told=4, numerics=Numerics.REASSOCIATED
    ),
}


@final
@dataclass(frozen=True)
class Activations(AbstractFamily):
    """Exact but for ELU, whose gradient from the output is another formula: torch's own where ELU runs in place."""

    name: ClassVar[str] = "activations"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = KERNELS

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for backward in list(builder.calls(*_FORMS)):
            saved = _Saved.of(builder, backward)
            if saved is None or not builder.may_replace(saved.replaces):
                continue
            form = _FORMS[backward.op]
            options = []
            if saved.source != saved.read and _is_kept(builder, saved.source, backward):
                options.append(_instead(builder, saved, "without a copy", saved.source))
            if numerics.admits(form.numerics):
                options += _other_side(builder, saved, form)
            if form.answer is not None:
                options += _from_bits(builder, saved, form.answer(_numbers(backward, 1)))
            builder.group(self.kind, f"{self.name} {backward.id}", saved.replaces, options)


@dataclass(frozen=True, slots=True)
class _Saved:
    """The value that a backward reads besides its gradient.

    Arguments:
        read: as the backward has it.
        source: what holds the same elements: what `read` is a copy of, if it is one that only this backward reads.
        replaces: the recipes that an option makes unnecessary.
        dtype: of its elements.
    """

    backward: Recipe
    read: Read
    source: Read
    replaces: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, builder: GraphBuilder, backward: Recipe) -> _Saved | None:
        arg = backward.args[_FORMS[backward.op].saved]
        if not isinstance(arg, Ref) or backward.kwargs:
            return None
        read = backward.reads[arg.index]
        geometry, value = read.geometry, builder.values[read.value]
        if geometry is None or geometry.dtype not in FLOATS or value.persistent or value.arrives is not None:
            return None
        maker = builder.made_by(read.value)
        copied = maker is not None and maker.op == "aten.clone.default" and maker.args == (Ref(0),) and not maker.kwargs
        if maker is not None and copied and not read.views and builder.readers[read.value] == [backward.id]:
            return cls(backward, read, maker.reads[0], (maker.id, backward.id), geometry.dtype)
        return cls(backward, read, read, (backward.id,), geometry.dtype)


def _numbers(recipe: Recipe, first: int) -> _Numbers:
    return tuple(a for a in recipe.args[first:] if isinstance(a, int | float) and not isinstance(a, bool))


def _instead(
    builder: GraphBuilder,
    saved: _Saved,
    name: str,
    read: Read,
    told: tuple[int, bool] | None = None,
    numerics: Numerics = Numerics.EXACT,
) -> Option:
    """The same operator on another tensor in the place of the saved one."""
    backward = saved.backward
    position = _FORMS[backward.op].saved
    given: list[Read | Arg] = [backward.reads[a.index] if isinstance(a, Ref) else a for a in backward.args]
    given[position] = read
    if told is not None:
        given[told[0]] = told[1]
    reads, args = bound(*given)
    return Option(
        name, (builder.recipe(backward, backward.op, outputs=backward.outputs, reads=reads, args=args),), numerics
    )


def _other_side(builder: GraphBuilder, saved: _Saved, form: _Form) -> list[Option]:
    """From the input where the program reads the output, or the reverse."""
    numbers = _numbers(saved.backward, 1)

    def agrees(forward: Recipe | None) -> bool:
        if forward is None or forward.op not in form.forwards or len(forward.outputs) != 1:
            return False
        return form.forwards[forward.op](_numbers(forward, 1), numbers, saved.dtype)

    maker = builder.made_by(saved.source.value)
    if maker is not None and not saved.source.views and agrees(maker) and _reads_output(saved.backward, form):
        told = None if form.told is None else (form.told, False)
        kept = _is_kept(builder, maker.reads[0], saved.backward)
        return [_instead(builder, saved, "from input", maker.reads[0], told, form.numerics)] if kept else []
    for number in builder.readers.get(saved.source.value, ()):
        forward = builder.recipes[number]
        if (
            not agrees(forward)
            or forward.reads[0] != saved.source
            or _reads_output(saved.backward, form, default=False)
        ):
            continue
        told, output = None if form.told is None else (form.told, True), builder.read(forward.outputs[0])
        if _is_kept(builder, output, saved.backward):
            return [_instead(builder, saved, "from output", output, told, form.numerics)]
    return []


def _is_kept(builder: GraphBuilder, read: Read, reader: Recipe) -> bool:
    """Whether a value is what it was when a backward reads it: not overwritten, and not in the caller's hands."""
    value = builder.values[read.value]
    limit = value.readable_through
    return value.leaves is None and (limit is None or limit >= reader.segment)


def _reads_output(backward: Recipe, form: _Form, *, default: bool = True) -> bool:
    """Whether the backward is told that it reads the output; `default` where it does not ask."""
    return default if form.told is None else backward.args[form.told] is True


def _from_bits(builder: GraphBuilder, saved: _Saved, answer: _Answer) -> list[Option]:
    maker, backward = builder.made_by(saved.source.value), saved.backward
    order = dense_order(saved.source.geometry)
    if maker is None or order is None or saved.source.geometry is None or maker.segment == backward.segment:
        return []
    geometry = bits_geometry(saved.source.geometry)
    if geometry.numel == 0:
        return []
    bits = builder.value(f"{builder.values[saved.read.value].name}_bits", geometry)
    reads, args = bound(saved.source, answer.question, answer.low, answer.high, as_argument(order))
    pack = builder.recipe(maker, "lowtide.pack_answers", outputs=[bits], reads=reads, args=args)
    reads, args = bound(backward.reads[0], builder.read(bits), *answer.factors, as_argument(order), answer.as_saved)
    apply = builder.recipe(backward, f"lowtide.{answer.kernel}", outputs=backward.outputs, reads=reads, args=args)
    return [Option("from bits", (pack, apply))]
