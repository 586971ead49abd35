"""What a first call is doing and how long it will take: one line, on a terminal or in a notebook, and nowhere else.

Stages tell; who shows it is exchangeable. Where output is piped, and with `LOWTIDE_PROGRESS=0`, nothing is shown.

Units: `_s` seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Show = Callable[[str], None]
"""Shows a line in the place of the one before; an empty one removes it."""

_PATIENCE_s = 0.5  # what takes less is not worth a line
_PAUSE_s = 0.1  # between two lines
_STATE = threading.local()


class _Line:
    """The line of one thread: it appears after a while, changes at most every so often, and is gone in the end."""

    def __init__(self) -> None:
        self.depth = 0
        self.start_s = self.shown_s = 0.0
        self.shown = False
        self.show: Show | None = None

    def put(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self.start_s < _PATIENCE_s or now_s - self.shown_s < _PAUSE_s:
            return
        self.shown_s = now_s
        if not self.shown:
            self.show = getattr(_STATE, "show", None) or _default()
        if self.show is not None:
            self.show(f"lowtide: {text}")
            self.shown = True


@contextmanager
def told() -> Iterator[None]:
    """Inside, stages may tell what they do; nested uses share one line, which is removed when the outermost ends."""
    line = _line()
    if not line.depth:
        line.start_s, line.shown_s, line.shown = time.monotonic(), 0.0, False
    line.depth += 1
    try:
        yield
    finally:
        line.depth -= 1
        if not line.depth and line.shown and line.show is not None:
            line.show("")


def tell(text: str) -> None:
    """Says what is being done now; without effect outside `told`."""
    line = _line()
    if line.depth:
        line.put(text)


def tell_part(text: str, part: float, elapsed_s: float) -> None:
    """The same, with how long the rest will take if it goes on as it has.

    Arguments:
        part: of the work that is done, from 0 to 1.
        elapsed_s: since that work began.
    """
    line = _line()
    if line.depth:
        left_s = elapsed_s * (1.0 / part - 1.0) if part > 0.02 else None
        line.put(text if left_s is None else f"{text}, {left_s:.0f} s left")


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Inside, lines of this thread go to `show` instead of the terminal or the notebook."""
    before = getattr(_STATE, "show", None)
    _STATE.show = show
    try:
        yield
    finally:
        _STATE.show = before


def _line() -> _Line:
    if not hasattr(_STATE, "line"):
        _STATE.line = _Line()
    found: _Line = _STATE.line
    return found


def _default() -> Show | None:
    """The terminal or the notebook that somebody looks at; None where there is neither, or it is not wanted."""
    if os.environ.get("LOWTIDE_PROGRESS") == "0":
        return None
    if in_notebook():
        return _Notebook()
    return _on_terminal if sys.stderr is not None and sys.stderr.isatty() else None


def in_notebook() -> bool:
    """Whether this is a kernel whose output a notebook shows."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _on_terminal(text: str) -> None:
    columns = os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 80
    sys.stderr.write(f"\r\x1b[2K{text[: columns - 1]}")
    sys.stderr.flush()


class _Notebook:
    """One output of a cell, which is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        from IPython.display import HTML, display

        shown = HTML(f"<code>{text}</code>" if text else "")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)
