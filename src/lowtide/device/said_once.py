"""Messages that a model logs once and never again, such as transformers' `logger.warning_once`.

Dynamo breaks a graph at any method of a logger. One that remembers what it has said (a `functools.lru_cache` round it)
does nothing at its second call: so it is called while the graph is captured, which is the first call's time, and what
the graph leaves out is what later calls do.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

_REMEMBERING = type(functools.lru_cache(lambda: None))
_THREAD = threading.local()  # `captures`: while a capture of ours runs on this thread


@contextlib.contextmanager
def messages_said_once() -> Iterator[None]:
    """Inside, such messages on this thread are logged when Dynamo meets them, and break no graph."""
    _install()
    before = getattr(_THREAD, "captures", False)
    _THREAD.captures = True
    try:
        yield
    finally:
        _THREAD.captures = before


@functools.cache
def _install() -> None:
    """Puts a function in the place of Dynamo's for loggers, for good; outside our captures it does as before."""
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.misc import LoggingLoggerVariable

    plain = LoggingLoggerVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not (getattr(_THREAD, "captures", False) and remembers(self.value, name)):
            return plain(self, tx, name, args, kwargs)
        if not all(v.is_python_constant() for v in (*args, *kwargs.values())):
            return plain(self, tx, name, args, kwargs)
        words = {k: v.as_python_constant() for k, v in kwargs.items()}
        getattr(self.value, name)(*(v.as_python_constant() for v in args), **words)
        return ConstantVariable.create(None)

    LoggingLoggerVariable.call_method = call_method  # type: ignore[method-assign]


def remembers(logger: logging.Logger, name: str) -> bool:
    """Whether a method of a logger says each message once."""
    return isinstance(getattr(type(logger), name, None), _REMEMBERING)
