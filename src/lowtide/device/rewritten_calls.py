"""Calls that Dynamo writes as others while it traces them, with other roundings, are traced as they are.

`torch.addcdiv(x, a, b, value=v)` would become a division, a product and a sum; `torch._foreach_lerp_`, subtractions and
products. Eager runs one kernel for each. Dynamo has an option against some of these (see
`lowtide.device.dynamo_settings.captured_as_eager`), and none against these two. Calls of numpy are traced as torch's
operators where that gives the same bits, and else not at all (`lowtide.device.numpy_calls`). Nor are calls that change
a setting which kernels read when they run, such as the default dtype: a graph would be traced under the new setting and
run under the old one.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lowtide.device.numpy_calls import leave_numpy_alone

_THREAD = threading.local()  # `keeps`: whether a capture of ours runs on this thread
_REWRITTEN: tuple[Callable[..., Any], ...] = (torch.addcdiv, torch._foreach_lerp_)
_SETTINGS = (
    "set_default_dtype", "set_float32_matmul_precision", "use_deterministic_algorithms",
    "_C._set_deterministic_algorithms", "_C._set_mkldnn_enabled", "_C._set_mkldnn_deterministic",
    "_C._set_cudnn_enabled", "_C._set_cudnn_deterministic", "_C._set_cudnn_benchmark", "_C._set_fp32_precision_setter",
)  # fmt: skip


@contextlib.contextmanager
def calls_kept() -> Iterator[None]:
    """Inside, Dynamo traces on this thread the calls of a model as they are."""
    _install()
    before = _are_kept()
    _THREAD.keeps = True
    try:
        yield
    finally:
        _THREAD.keeps = before


def _are_kept() -> bool:
    return getattr(_THREAD, "keeps", False)


@functools.cache
def _install() -> None:
    """Puts functions in the place of Dynamo's for such calls, for good; outside our captures they do as before."""
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    leave_numpy_alone(_are_kept)
    for call in _REWRITTEN:
        if (rewrite := handlers.get(call)) is not None:
            handlers[call] = _unless_kept(rewrite)
    for name in _SETTINGS:
        try:
            setting = operator.attrgetter(name)(torch)
        except AttributeError:  # not of this release
            continue
        handlers[setting] = _ended_where_kept(handlers.get(setting))


def _unless_kept(rewrite: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rewrite)
    def handle(*args: Any, **kwargs: Any) -> Any:
        return None if _are_kept() else rewrite(*args, **kwargs)

    return handle


def _ended_where_kept(handler: Callable[..., Any] | None) -> Callable[..., Any]:
    """Ends the graph at a call, so that Python runs it."""
    from torch._dynamo.variables import SkipFunctionVariable

    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if _are_kept():
            return SkipFunctionVariable(self.value).call_function(tx, list(args), kwargs)  # raises
        return None if handler is None else handler(self, tx, *args, **kwargs)

    return handle
