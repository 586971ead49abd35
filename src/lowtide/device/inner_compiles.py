"""Code inside a model that `torch.compile` has compiled already.

Dynamo looks through it and captures the operators that it is written with. Without lowtide a compiler's kernels run
there, which round otherwise.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_INSIDE = "_torchdynamo_inline"  # of what torch.compile returns: the function that Dynamo traces in its place


def note_compiled_code(note: Callable[[str, Any], None]) -> None:
    """Puts functions in the place of Dynamo's for such code, for good; to be called once.

    Arguments:
        note: is called with the name of what Dynamo looks through, and with what traces it where that is known.
    """
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.functions import UserFunctionVariable, WrapperUserFunctionVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    call_function, wrap_module = WrapperUserFunctionVariable.call_function, VariableBuilder.wrap_module
    make, handlers = UserFunctionVariable.__init__, TorchInGraphFunctionVariable._get_handlers()
    compiles = handlers.get(torch.compile)

    @functools.wraps(call_function)
    def called(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if is_compiled_function(self.wrapper_obj):
            note(_name(self.wrapper_obj), tx)
        return call_function(self, tx, args, kwargs)

    @functools.wraps(make)
    def made(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        if is_compiled_function(fn) or getattr(kwargs.get("source"), "member", None) == _INSIDE:  # a method
            note(getattr(fn, "__qualname__", "a method"), None)
        make(self, fn, *args, **kwargs)

    @functools.wraps(wrap_module)
    def wrapped(self: Any, value: torch.nn.Module) -> Any:
        if is_compiled_module(value):
            note(type(getattr(value, "_orig_mod", value)).__name__, getattr(self, "tx", None))
        return wrap_module(self, value)

    WrapperUserFunctionVariable.call_function = called  # type: ignore[method-assign]
    UserFunctionVariable.__init__ = made  # type: ignore[method-assign]
    VariableBuilder.wrap_module = wrapped  # type: ignore[method-assign]
    if compiles is not None:  # a call of torch.compile in the code that is traced: Dynamo gives its argument back

        @functools.wraps(compiles)
        def compiled(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            note("what is given to torch.compile", tx)
            return compiles(self, tx, *args, **kwargs)

        handlers[torch.compile] = compiled


def is_compiled_function(function: Any) -> bool:
    """Whether a function is what `torch.compile` returned for another, other than lowtide's own."""
    return (
        getattr(function, _INSIDE, None) is not None
        and getattr(function, "_torchdynamo_orig_callable", None) is not None
    )


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether `torch.compile(module)` made a module, or `module.compile()` was called; `lowtide.fit` does neither."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
        return not getattr(module.forward, "_torchdynamo_disable", False)
    call = getattr(module, "_compiled_call_impl", None)
    return call is not None and not getattr(call, "__module__", "").startswith("lowtide.")


def _name(function: Any) -> str:
    inner = function._torchdynamo_orig_callable
    return getattr(inner, "__qualname__", None) or type(inner).__name__
