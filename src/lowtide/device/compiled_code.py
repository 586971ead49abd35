"""A function that Dynamo compiles: it can be compiled afresh, and what was compiled for it goes with it.

Dynamo attaches compiled code to a function's code object, which outlives the function: something in torch keeps it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch


class CompiledFunction:
    """A function, compiled.

    Arguments:
        function: with a code object that no other function has, of a name that none has.
        backend, dynamic: as of `torch.compile`.
    """

    def __init__(self, function: types.FunctionType, backend: Callable[..., Any] | str, dynamic: bool | None) -> None:
        self._backend = backend
        named = backend if isinstance(backend, str) else _weak(backend)
        self._call = torch.compile(function, backend=named, dynamic=dynamic)
        self._code = function.__code__
        weakref.finalize(self, _forget, self._code).atexit = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it."""
        return self._call(*args, **kwargs)

    def begin_anew(self) -> None:
        """Releases what was compiled, and of what was learnt of sizes; outstanding backwards keep what they need."""
        _forget(self._code)


def _weak(backend: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that does not keep the one it stands for: torch keeps every backend for good."""
    alive = weakref.ref(backend)

    def lowtide(gm: Any, inputs: Any) -> Any:
        found = alive()
        assert found is not None, "who compiles keeps it"
        return found(gm, inputs)

    return lowtide  # as torch's own errors name it


def sizes_learnt() -> dict[Any, Any]:
    """What Dynamo knows of sizes that vary, by code."""
    return torch._dynamo.pgo.get_code_state()


def _forget(code: types.CodeType) -> None:
    torch._C._dynamo.eval_frame.reset_code(code)
    sizes = sizes_learnt()
    for key in [k for k in sizes if k.name == code.co_name]:
        del sizes[key]
