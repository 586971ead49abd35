"""Operators whose every result element comes from one element of each argument: which they are, and how they write.

Torch-free but for `writer`, which finds the form of an operator that writes into a tensor it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from lowtide.ops.lazy import torch

ROUNDED = frozenset(
    {
        *("aten.relu.default", "aten.neg.default", "aten.abs.default", "aten.sign.default", "aten.sqrt.default"),
        *("aten.reciprocal.default", "aten.floor.default", "aten.ceil.default", "aten.round.default"),
        *("aten.trunc.default", "aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default"),
        *("aten.hardtanh.default", "aten.leaky_relu.default", "aten.maximum.default", "aten.minimum.default"),
        *("aten.threshold_backward.default", "aten.hardtanh_backward.default", "aten.leaky_relu_backward.default"),
        *("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor"),
        *("aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar", "aten.rsub.Scalar"),
        *("aten.where.self", "aten.masked_fill.Scalar", "aten.logical_not.default", "aten.logical_and.default"),
        *("aten.logical_or.default", "aten.bitwise_not.default", "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor"),
        *(f"aten.{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")),
        *("aten.clone.default", "aten._to_copy.default", "aten.native_dropout_backward.default"),
    }
)
"""Selections, copies and single operations: IEEE 754 says what they give, however a kernel goes about it."""

APPROXIMATED = frozenset(
    {
        *(f"aten.{name}.default" for name in ("exp", "expm1", "log", "log1p", "erf", "sin", "cos", "rsqrt")),
        *(f"aten.{name}.default" for name in ("tanh", "sigmoid", "silu", "gelu", "elu", "softplus", "mish")),
        *(f"aten.{name}.default" for name in ("hardswish", "hardsigmoid", "addcmul", "addcdiv")),
        *(f"aten.{name}_backward.default" for name in ("tanh", "sigmoid", "silu", "gelu", "elu", "softplus")),
        *("aten.hardsigmoid_backward.default", "aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor"),
    }
)
"""Functions and sums of products, which vector code and what it leaves over may round differently."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_SAME_AS = {f"aten.{name}.Scalar": f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div", *_COMPARISONS)}

_QUICK = frozenset(
    {
        *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where", "addcmul", "addcdiv", "clamp", "rsqrt"),
        *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "reciprocal", "sigmoid", "sign"),
        *("sin", "sqrt", "tanh", "trunc", *_COMPARISONS),
    }
)
"""Operators that torch also has as functions of the same arguments, which are called in a quarter of the time."""

NUMBERS = frozenset({*_SAME_AS, *_SAME_AS.values(), "aten.rsub.Scalar"})
"""Operators that make a tensor of a number, their second argument, for every call."""


def is_exact(number: float, dtype: str) -> bool:
    """Whether a tensor of a dtype can stand for a number: torch computes with it in no finer one, or it is the same."""
    if dtype not in ("bfloat16", "float16"):
        return dtype in ("float32", "float64")
    try:
        whole = struct.pack(">f" if dtype == "bfloat16" else ">e", number)
    except OverflowError:
        return False
    (rounded,) = struct.unpack(">f", whole[:2] + bytes(2)) if dtype == "bfloat16" else struct.unpack(">e", whole)
    return bool(rounded == number)


def writer(op: str) -> tuple[Callable[..., Any], str]:
    """Finds how an elementwise operator writes into a tensor of the right sizes and dtype, allocating nothing.

    Arguments:
        op: of `ROUNDED` or `APPROXIMATED`, but for the gradient of dropout, which takes several steps. Of `NUMBERS` the
            form that takes a tensor of the number.

    Returns: a callable with the operator's own arguments, and the keyword under which it takes the tensor.
    """
    if op in _OWN:
        return _OWN[op], "out"
    packet_name, overload = _SAME_AS.get(op, op).removeprefix("aten.").rsplit(".", 1)
    packet = getattr(torch.ops.aten, packet_name)
    plain = [(a.name, str(a.type)) for a in getattr(packet, overload)._schema.arguments]
    for name in packet.overloads():
        found = getattr(packet, name)
        arguments = found._schema.arguments
        results = [a.name for a in arguments if a.is_out]
        if len(results) == 1 and [(a.name, str(a.type)) for a in arguments if not a.is_out] == plain:
            quick = results[0] == "out" and packet_name in _QUICK
            return getattr(torch, packet_name) if quick else found, results[0]
    raise AssertionError(f"{op} has no form that writes into a tensor")


def _copy(x: Any, *, out: Any, **_: Any) -> None:
    out.copy_(x)


def _relu(x: Any, *, out: Any) -> None:
    torch.ops.aten.clamp_min.out(x, 0, out=out)


def _rsub(x: Any, other: Any, *, out: Any) -> None:
    torch.ops.aten.sub.out(other, x, out=out)


def _masked_fill(x: Any, mask: Any, value: Any, *, out: Any) -> None:
    if out is not x:
        out.copy_(x)
    out.masked_fill_(mask, value)


_OWN: dict[str, Callable[..., Any]] = {
    "aten.clone.default": _copy,
    "aten._to_copy.default": _copy,
    "aten.relu.default": _relu,
    "aten.rsub.Scalar": _rsub,
    "aten.masked_fill.Scalar": _masked_fill,
}
