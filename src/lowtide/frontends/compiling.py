"""Turning a module's call into a compiled one that never leaves the plan unnoticed."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import torch

from lowtide.device.semiprivate import (
    backend_failure,
    captured_as_eager,
    missing,
    recompile_limit_error,
    warn_if_untested,
)
from lowtide.errors import CaptureError, LowtideError, RecompileLimit

_SERIAL = itertools.count(1)


def compiled_call(
    module: torch.nn.Module, backend: Callable[..., Any] | str, dynamic: bool | None
) -> Callable[..., Any]:
    """The module's call, hooks included, compiled by a Dynamo backend.

    Dynamo skips frames of `torch.nn` itself, so a bare `nn.Sequential` would never be captured; a function of ours
    around the call is not skipped. It gets a code object and a name of its own, because Dynamo counts recompiles,
    and remembers which sizes vary, per code object and per name.
    """
    if lacking := missing():
        raise CaptureError(
            f"torch {torch.__version__} lacks {', '.join(lacking)}, which lowtide needs to capture a model"
        )
    warn_if_untested()
    call: Callable[..., Any] = module._call_impl

    def step(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    name = f"lowtide_step_{next(_SERIAL)}"
    code = step.__code__.replace(co_name=name)
    own = types.FunctionType(code, step.__globals__, name, None, step.__closure__)
    compiled: Callable[..., Any] = torch.compile(own, backend=backend, dynamic=dynamic)
    return compiled


def run_loudly(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a compiled function; what Dynamo would hide or wrap reaches the user as lowtide's own error.

    Raises:
        RecompileLimit: where Dynamo would go on in eager, outside the budget.
        LowtideError: raised while compiling, without Dynamo's wrapping.
    """
    try:
        with captured_as_eager():
            return call(*args, **kwargs)
    except recompile_limit_error() as error:
        raise RecompileLimit(
            "torch reached its recompile limit and would go on in eager, outside the budget. Pad inputs to fewer "
            "shapes, pass dynamic=True, or raise torch._dynamo.config.recompile_limit."
        ) from error
    except backend_failure() as error:
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, LowtideError):
            raise inner from error
        raise
