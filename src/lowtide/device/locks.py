"""Locks are entered while a graph is captured: they guard Python state of a model, and compute nothing.

Dynamo ends a graph at a lock. Inside a capture of ours that is to be one graph, entering one does nothing: what it
guards is carried out by the capture, or after it, on this thread alone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_THREAD = threading.local()  # `enters`: whether a capture of ours runs on this thread


@contextlib.contextmanager
def locks_entered() -> Iterator[None]:
    """Inside, Dynamo goes on where code that it traces on this thread takes a lock."""
    _install()
    before = getattr(_THREAD, "enters", False)
    _THREAD.enters = True
    try:
        yield
    finally:
        _THREAD.enters = before


@functools.cache
def _install() -> None:
    """Teaches Dynamo to wrap a lock, for good; outside our captures it does as before."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._dynamo.variables.ctx_manager import NullContextVariable

    class Lock(NullContextVariable):
        """A lock that nobody waits for."""

        def enter(self, tx: Any) -> Any:  # noqa: ARG002
            return ConstantVariable.create(True)

        def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name in ("acquire", "__enter__"):
                return ConstantVariable.create(True)
            if name in ("release", "__exit__"):
                return ConstantVariable.create(None)
            return super().call_method(tx, name, args, kwargs)

    plain = VariableBuilder._wrap

    def wrap(self: Any, value: Any) -> Any:
        if getattr(_THREAD, "enters", False) and isinstance(value, _LOCKS):
            self.install_guards(GuardBuilder.TYPE_MATCH)
            return Lock(source=self.source)
        return plain(self, value)

    VariableBuilder._wrap = wrap  # type: ignore[method-assign]
