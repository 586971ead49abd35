"""Ctrl-C between operators, never within one: what an operator has done is noted before anything is raised.

Units: none.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Holds back SIGINT while something must not be torn apart.

    It takes the place of a handler written in Python, in the main thread; elsewhere no signal arrives.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._held = 0
        self._pending: tuple[int, FrameType | None] | None = None

    def begin(self) -> None:
        """From now on signals wait for `let_go` where they are held."""
        if threading.current_thread() is threading.main_thread():
            found = signal.getsignal(signal.SIGINT)
            if callable(found):
                self._before = found
                signal.signal(signal.SIGINT, self._arrived)

    def end(self) -> None:
        """Puts the handler back that was there, unless somebody has put in another."""
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._arrived:
            signal.signal(signal.SIGINT, self._before)
        self._before = None

    def hold(self) -> None:
        """Holds signals back; nests."""
        self._held += 1

    def let_go(self) -> None:
        """Undoes one `hold`; with the last one, a signal that came meanwhile is delivered.

        Raises: what its handler raises: KeyboardInterrupt, as a rule.
        """
        self._held -= 1
        if self._held == 0 and self._pending is not None:
            pending, self._pending = self._pending, None
            if self._before is not None:
                self._before(*pending)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = number, frame
        elif self._before is not None:
            self._before(number, frame)
