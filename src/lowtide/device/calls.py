"""Calls as data made into calls: operator names, constants, arguments and views.

The profiler runs recipes and the code generator prints them; both read a recipe here, so that what was measured is
what runs.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from lowtide.device import recurrence
from lowtide.device.compiled_kernels import compiled_op
from lowtide.errors import UnsupportedOperator
from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, Ref, View
from lowtide.ops.catalogue import kernels

# What captured programs call is closed by kind: numbers in Python, torch's operators on tensors, and those higher-order
# operators that a capture produces. `builtins.exec` is no operator, nor is what opens a file or exchanges what a tensor
# views behind its back.
_ARITHMETIC = frozenset({
    "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "inv", "invert", "is_", "is_not", "le", "lshift",
    "lt", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "truth", "xor",
})  # fmt: skip
_MATHEMATICS = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "exp", "fabs", "floor", "fmod",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
})  # fmt: skip
_HIGHER_ORDER = frozenset({
    "associative_scan", "auto_functionalized", "auto_functionalized_v2", "cond", "flex_attention",
    "flex_attention_backward", "foreach_map", "invoke_subgraph", "map", "map_impl", "out_dtype", "scan",
    "triton_kernel_wrapper_functional", "while_loop", "while_loop_stack_output", "with_effects", "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
})  # fmt: skip
_FOREIGN = frozenset({"c10d", "prim", "profiler"})  # namespaces of what takes process groups, objects and scopes
_OUTSIDE = frozenset({"_print", "from_file", "set_data"})  # of aten: on files, the terminal, the tensor itself
_BUILTINS = frozenset({"abs", "bool", "divmod", "float", "int", "len", "max", "min", "pow", "round", "sum"})
_TORCH = frozenset({"sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum"})
_MODULES: dict[str, tuple[ModuleType, frozenset[str]]] = {
    "operator": (operator, _ARITHMETIC),
    "_operator": (operator, _ARITHMETIC),
    "math": (math, _MATHEMATICS),
    "builtins": (builtins, _BUILTINS),
    "torch": (torch, _TORCH),
}


@functools.cache
def resolve(op: str) -> Callable[..., Any]:
    """Finds the callable behind an operator's name.

    Arguments:
        op: `"namespace.name.overload"` of a torch operator, `"lowtide.name"` of one of ours, `"compiled.name.digest"`
            of a kernel that was compiled in this process, `"higher_order.name"` (with or without `"torch.ops."`),
            `"operator.name"`, `"math.name"`, a numeric builtin, or a symbolic number function of torch.

    Raises:
        UnsupportedOperator: if the installed torch, with the libraries that are loaded, has no such operator, or it is
            of no kind that captured programs have.
    """
    parts = op.removeprefix("torch.ops.").split(".")
    found = _own(".".join(parts)) or _python(parts) or _torch(parts)
    if found is None:
        raise UnsupportedOperator(
            f"torch {torch.__version__} has no operator {op!r} that a captured program can have: import the library "
            "that defines it first, or plan again with this version"
        )
    return found


def _own(op: str) -> Callable[..., Any] | None:
    """An operator of ours: one that captured graphs have, or the kernel of an implementation."""
    if op == "lowtide.recurrent_layer.default":
        return recurrence.RECURRENT_LAYER
    kernel = kernels().get(op)
    return compiled_op(op) if kernel is None else kernel.run


def _python(parts: list[str]) -> Callable[..., Any] | None:
    if len(parts) != 2 or parts[0] not in _MODULES:
        return None
    module, names = _MODULES[parts[0]]
    return getattr(module, parts[1], None) if parts[1] in names else None


def _torch(parts: list[str]) -> Callable[..., Any] | None:
    if parts[0] == "higher_order":
        name = ".".join(parts[1:])
        return getattr(torch.ops.higher_order, name, None) if name in _HIGHER_ORDER else None
    if len(parts) not in (2, 3) or parts[0] in _FOREIGN or (parts[0] == "aten" and parts[1] in _OUTSIDE):
        return None
    found: Any = getattr(torch.ops, parts[0])
    for part in (*parts[1:], "default")[:2]:
        try:
            found = getattr(found, part)
        except AttributeError:  # torch's namespaces raise it with a text of their own
            return None
    is_operator = isinstance(found, torch._ops.OpOverload) and torch.Tag.inplace_view not in found.tags
    return found if is_operator else None


def constant(const: Const) -> Any:
    """The object that a constant stands for: a torch dtype, device, layout or memory format, a float, a complex.

    Raises:
        UnsupportedOperator: if torch has no constant of that name.
    """
    if const.kind == "float":
        return float(const.text)
    if const.kind == "complex":
        return complex(const.text)
    if const.kind == "device":
        return torch.device(const.text)
    found = getattr(torch, const.text.removeprefix("torch."), None)
    kinds = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
    if not isinstance(found, kinds[const.kind]):
        raise UnsupportedOperator(f"torch {torch.__version__} has no {const.kind} {const.text!r}")
    return found


def decode(arg: Arg, refs: Sequence[Any], held: Sequence[Any] = ()) -> Any:
    """One argument as it is passed.

    Arguments:
        arg: from a recipe or a view.
        refs: what `Ref(i)` stands for: the recipe's reads, seen through their views.
        held: what `Held(i)` stands for, from the capture.

    Raises:
        UnsupportedOperator: if it needs something that only the capture holds and `held` lacks.
    """
    match arg:
        case Ref(index=index):
            return refs[index]
        case Items(items=items):
            return [decode(item, refs, held) for item in items]
        case Const():
            return constant(arg)
        case Held(index=index):
            if index >= len(held):
                raise UnsupportedOperator(f"argument {index} is held by the capture alone: capture the program again")
            return held[index]
        case _:
            return arg


def arguments(
    args: tuple[Arg, ...], kwargs: tuple[NamedArg, ...], refs: Sequence[Any], held: Sequence[Any] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """All arguments of a recipe or a view as they are passed; see `decode`."""
    return [decode(a, refs, held) for a in args], {name: decode(a, refs, held) for name, a in kwargs}


def apply_view(view: View, base: Any, held: Sequence[Any] = ()) -> Any:
    """One geometric step from a tensor to a tensor over the same bytes.

    Raises:
        UnsupportedOperator: as `resolve` and `decode`.
        RuntimeError: torch's own, if the step does not exist for the base's strides.
    """
    args, kwargs = arguments(view.args, view.kwargs, (base,), held)
    result = resolve(view.op)(*args, **kwargs)
    return result if view.pick is None else result[view.pick]


def pick(result: Any, path: Sequence[int]) -> Any:
    """The part of an operator's result that a path leads to; `()` is the result itself."""
    for index in path:
        result = result[index]
    return result
