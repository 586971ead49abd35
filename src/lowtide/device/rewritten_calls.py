"""Calls that Dynamo writes as others while it traces them, with other roundings, are traced as they are.

`torch.addcdiv(x, a, b, value=v)` would become a division, a product and a sum; `torch._foreach_lerp_`, subtractions and
products. Eager runs one kernel for each. Dynamo has an option against some of these (see
`lowtide.device.semiprivate.captured_as_eager`), and none against these two. Calls of numpy are traced as torch's
operators where that gives the same bits, and else not at all (`lowtide.device.numpy_calls`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lowtide.device.numpy_calls import leave_numpy_alone

_THREAD = threading.local()  # `keeps`: whether a capture of ours runs on this thread
_REWRITTEN: tuple[Callable[..., Any], ...] = (torch.addcdiv, torch._foreach_lerp_)


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


def _unless_kept(rewrite: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rewrite)
    def handle(*args: Any, **kwargs: Any) -> Any:
        return None if _are_kept() else rewrite(*args, **kwargs)

    return handle
