"""Keeps autograd's backwards on the thread that calls them, while that thread has a window to an arena open.

A backward of CUDA tensors runs on a thread of autograd's own, which has engaged no arena, has no segment to fail in,
and brings a cuBLAS workspace of its own; `torch.autograd.set_multithreading_enabled(False)` keeps it on the caller's.
torch looks at that setting when the engine is called, and undoes what is set while it runs; so it is set around that
call, and is the user's own again when the call ends, however it ends.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch


class _Mine(threading.local):
    windows = 0


_mine = _Mine()
_lock = threading.Lock()
_is_installed = False


def hold() -> None:
    """Keeps this thread's backwards on it until `release`; nests."""
    if not _is_installed:
        _install()
    _mine.windows += 1


def release() -> None:
    """Undoes one `hold` of this thread."""
    _mine.windows -= 1


def _install() -> None:
    """Puts a look at this thread's windows in front of autograd's engine, for the rest of the process."""
    global _is_installed
    with _lock:
        if _is_installed:
            return
        engine = torch.autograd.graph._engine_run_backward

        @functools.wraps(engine)
        def run(*args: Any, **kwargs: Any) -> Any:
            if _mine.windows == 0:
                return engine(*args, **kwargs)
            with torch.autograd.set_multithreading_enabled(False):
                return engine(*args, **kwargs)

        torch.autograd.graph._engine_run_backward = run
        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
        _is_installed = True
