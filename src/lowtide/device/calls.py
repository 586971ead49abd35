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
from lowtide.errors import UnsupportedOperator
from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, Ref, View
from lowtide.ops.catalogue import kernels

# A plan file names its operators, so Python functions come from a list: `builtins.exec` is no operator.
_BUILTINS = frozenset({"abs", "bool", "divmod", "float", "int", "len", "max", "min", "pow", "round", "sum"})
_TORCH = frozenset({"sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum"})
_MODULES: dict[str, ModuleType] = {"operator": operator, "_operator": operator, "math": math}


@functools.cache
def resolve(op: str) -> Callable[..., Any]:
    """Finds the callable behind an operator's name.

    Arguments:
        op: `"namespace.name.overload"` of a torch operator, `"lowtide.name"` of one of ours, `"higher_order.name"`
            (with or without `"torch.ops."`), `"operator.name"`, `"math.name"`, a numeric builtin, or a symbolic
            number function of torch.

    Raises:
        UnsupportedOperator: if the installed torch, with the libraries that are loaded, has no such operator.
    """
    parts = op.removeprefix("torch.ops.").split(".")
    found = _own(".".join(parts)) or _python(parts) or _torch(parts)
    if found is None:
        raise UnsupportedOperator(
            f"torch {torch.__version__} has no operator {op!r}: import the library that defines it first, "
            "or make the plan again with this version"
        )
    return found


def _own(op: str) -> Callable[..., Any] | None:
    """An operator of ours: one that captured graphs have, or the kernel of an implementation."""
    if op == "lowtide.recurrent_layer.default":
        return recurrence.RECURRENT_LAYER
    kernel = kernels().get(op)
    return None if kernel is None else kernel.run


def _python(parts: list[str]) -> Callable[..., Any] | None:
    if len(parts) != 2:
        return None
    module, name = parts
    if module in _MODULES and not name.startswith("_"):
        return getattr(_MODULES[module], name, None)
    if module == "builtins" and name in _BUILTINS:
        return getattr(builtins, name, None)
    if module == "torch" and name in _TORCH:
        return getattr(torch, name, None)
    return None


def _torch(parts: list[str]) -> Callable[..., Any] | None:
    if parts[0] == "higher_order":
        return getattr(torch.ops.higher_order, ".".join(parts[1:]), None) if len(parts) > 1 else None
    if len(parts) not in (2, 3):
        return None
    found: Any = getattr(torch.ops, parts[0])
    for part in (*parts[1:], "default")[:2]:
        try:
            found = getattr(found, part)
        except AttributeError:  # torch's namespaces raise it with a text of their own
            return None
    return found if isinstance(found, torch._ops.OpOverload) else None


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
