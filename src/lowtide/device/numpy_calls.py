"""numpy's functions run as numpy's where Dynamo would compute other bits, or draw from another generator.

Dynamo writes a call of numpy inside a model as torch's own operators: `np.exp` and `np.sum` then round as torch does,
and `np.random.rand` draws from torch's generator. Here a graph ends at such a call, and numpy runs between two graphs.
Functions that torch computes to the same bits stay in the graph: those that round correctly (`np.sqrt`), move or
compare values, or compute with whole numbers alone.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

_SAME_BITS = frozenset(
    (
        "absolute", "add", "all", "amax", "amin", "any", "argmax", "argmin", "array", "array_equal",
        "asarray", "ascontiguousarray", "astype", "atleast_1d", "atleast_2d", "broadcast_to", "ceil",
        "concatenate", "copy", "diag", "diagonal", "divide", "dtype", "empty", "empty_like", "equal",
        "expand_dims", "eye", "finfo", "flatten", "flip", "floor", "greater",
        "greater_equal", "hstack", "identity", "iinfo", "isfinite", "isinf", "isnan", "issubdtype", "item",
        "less", "less_equal", "logical_and", "logical_not", "logical_or", "max", "min",
        "moveaxis", "multiply", "ndim", "negative", "nonzero", "not_equal", "ones", "ones_like", "ravel",
        "repeat", "reshape", "result_type", "roll", "shape", "sign", "size", "sqrt", "squeeze", "stack",
        "subtract", "swapaxes", "take", "tile", "tolist", "transpose", "tril", "triu", "trunc", "vstack",
        "zeros", "zeros_like", "__getitem__", "__len__", "__iter__", "__setitem__",
    )
)  # fmt: skip
_SAME_FOR_WHOLE_NUMBERS = frozenset(("arange", "cumprod", "cumsum", "dot", "floor_divide", "prod", "remainder", "sum"))
_SAME_OPERATORS = frozenset(
    (
        operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pos, operator.abs,
        operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.getitem, operator.setitem,
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
        operator.not_, operator.invert,
    )
)  # fmt: skip


def leave_numpy_alone(when: Callable[[], bool]) -> None:
    """Puts functions in the place of Dynamo's for calls of numpy, for good; to be called once.

    Arguments:
        when: tells whether the graph that is being captured is to end where numpy would compute other bits than torch.
    """
    from torch._dynamo.variables import builtin
    from torch._dynamo.variables.misc import NumpyVariable
    from torch._dynamo.variables.tensor import NumpyNdarrayVariable

    call_function, call_method = NumpyVariable.call_function, NumpyNdarrayVariable.call_method
    wrapper: Any = vars(builtin).get("numpy_operator_wrapper")  # a release without it is named by `releases.missing`

    def check(function: Any, same: bool) -> None:
        if when() and not same:
            # Dynamo's own means of leaving numpy alone; it raises before it looks at anything else.
            with torch._dynamo.config.patch(trace_numpy=False):
                call_function(NumpyVariable(function), None, [], {})  # type: ignore[arg-type]

    @functools.wraps(call_function)
    def function_called(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(self.value, "__name__", "")
        check(self.value, _is_type(self.value) or _computes_the_same(name, args, kwargs))
        return call_function(self, tx, args, kwargs)

    @functools.wraps(call_method)
    def method_called(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        check(f"ndarray.{name}", _computes_the_same(name, [self, *args], kwargs))
        return call_method(self, tx, name, args, kwargs)

    def operator_called(function: Callable[..., Any]) -> Any:
        check(function, function in _SAME_OPERATORS)
        return wrapper(function)

    NumpyVariable.call_function = function_called  # type: ignore[method-assign]
    NumpyNdarrayVariable.call_method = method_called  # type: ignore[method-assign]
    if wrapper is not None:
        vars(builtin)["numpy_operator_wrapper"] = operator_called


def _is_type(function: Any) -> bool:
    """`np.float32(x)`, say: a change of type."""
    return isinstance(function, type)


def _computes_the_same(name: str, args: Any, kwargs: Any) -> bool:
    if name in _SAME_FOR_WHOLE_NUMBERS:
        return all(_is_whole(x) for x in [*args, *kwargs.values()])
    return name in _SAME_BITS


def _is_whole(variable: Any) -> bool:
    """Tells whether an argument, as Dynamo knows it, has whole numbers alone."""
    from torch._dynamo.variables.lists import BaseListVariable

    if isinstance(variable, BaseListVariable):
        return all(_is_whole(item) for item in variable.items)
    if variable.is_python_constant():
        value = variable.as_python_constant()
        return value is None or isinstance(value, int | str)
    example = getattr(getattr(variable.as_proxy(), "node", None), "meta", {}).get("example_value")
    return isinstance(example, torch.Tensor) and not example.dtype.is_floating_point and not example.dtype.is_complex
