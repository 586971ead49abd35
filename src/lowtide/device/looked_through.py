"""Functions inside a model that Dynamo looks through, though plain PyTorch runs something else there.

`torch.compile` and `torch.jit.script` put a compiler's kernels, or gradients of their own, in the place of what a
function is written with: these round otherwise. A function under `functools.lru_cache` runs once: drawn in every step,
its random numbers would be others, and what is changed in its result would be forgotten.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lowtide.device.compile_queries import Answers

_INSIDE = "_torchdynamo_inline"  # of what torch.compile returns: the function that Dynamo traces in its place
_DRAWS = re.compile("rand|normal_?$|bernoulli|multinomial|uniform_|dropout|exponential_|geometric_|cauchy_|poisson")

_EAGER = {"eager", "lowtide"}  # backends that run the operators which are captured


def note_what_is_looked_through(when: Callable[[], Answers | None]) -> None:
    """Puts functions in the place of Dynamo's where it looks through such code, for good; to be called once.

    A graph ends at a scripted function with gradients, so that it runs as it is.

    Arguments:
        when: gives the notes of the capture that runs on this thread; None where none of ours does.
    """
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.functions import (
        SkipFunctionVariable,
        UserFunctionVariable,
        WrapperUserFunctionVariable,
    )
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    call_function, wrap_module = WrapperUserFunctionVariable.call_function, VariableBuilder.wrap_module
    make, handlers = UserFunctionVariable.__init__, TorchInGraphFunctionVariable._get_handlers()
    compiles = handlers.get(torch.compile)
    scripted: weakref.WeakSet[Any] = weakref.WeakSet()  # functions behind scripted ones: no compiler's

    def note(name: str, tx: Any) -> None:
        if (noted := when()) is not None:
            noted.compiled(name, tx)

    @functools.wraps(call_function)
    def called(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        noted, function = when(), self.wrapper_obj
        if is_compiled_function(function):
            note(_name(function), tx)
        elif self.attr_to_trace == _INSIDE:
            scripted.add(getattr(function, _INSIDE))
        graph = tx.output.graph
        last = next(iter(reversed(graph.nodes)), None)
        result = call_function(self, tx, args, kwargs)
        if noted is None:
            return result
        if isinstance(function, torch.jit.ScriptFunction) and any(t.requires_grad for t in _tensors(result)):
            SkipFunctionVariable(getattr(function, _INSIDE)).call_function(
                tx, list(args), kwargs
            )  # the graph ends here
        if hasattr(function, "cache_info"):
            new = itertools.takewhile(lambda node: node is not last, reversed(graph.nodes))
            draws = any(_DRAWS.search(getattr(n.target, "__name__", str(n.target))) for n in new)
            noted.cached(_name(function), tx, draws, [(t, t._version) for t in _tensors(result)])
        return result

    @functools.wraps(make)
    def made(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        is_inside = getattr(kwargs.get("source"), "member", None) == _INSIDE  # so it is for methods
        if is_compiled_function(fn) or (is_inside and fn not in scripted):
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
    """Whether a function is what `torch.compile` returned for another, with a backend that may round otherwise."""
    return (
        isinstance(function, types.FunctionType)  # torch.jit.script's are of its own type
        and getattr(function, _INSIDE, None) is not None
        and getattr(function, "_torchdynamo_orig_callable", None) is not None
        and not {_backend(cell.cell_contents) for cell in function.__closure__ or ()} & _EAGER
    )


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether `torch.compile(module)` made a module, or `module.compile()` was called, with such a backend."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
        is_off = getattr(module.forward, "_torchdynamo_disable", False)
        return not is_off and _backend(getattr(module.dynamo_ctx, "callback", None)) not in _EAGER
    return is_compiled_function(getattr(module, "_compiled_call_impl", None))


def _backend(callback: Any) -> str:
    """The name of the backend behind what Dynamo calls; empty where it has none."""
    name = ""
    while (callback := getattr(callback, "_torchdynamo_orig_backend", None)) is not None:
        name = getattr(callback, "compiler_name", None) or name
    return name


def _name(function: Any) -> str:
    inner = getattr(function, "_torchdynamo_orig_callable", function)
    return getattr(inner, "__qualname__", None) or type(inner).__name__


def _tensors(result: Any) -> list[torch.Tensor]:
    """The fake tensors that a traced call has returned, by themselves or in a list."""
    from torch._dynamo.variables.lists import BaseListVariable

    variables = result.items if isinstance(result, BaseListVariable) else (result,)
    proxies = [proxy for v in variables if (proxy := getattr(v, "proxy", None)) is not None]
    values = [proxy.node.meta.get("example_value") for proxy in proxies]
    return [value for value in values if isinstance(value, torch.Tensor)]
