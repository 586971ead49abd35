"""A computation concurrent with the search, in a thread of its own: solvers release the interpreter's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

_POLL_s = 0.05
_PATIENCE_s = 5.0

T = TypeVar("T")


class Concurrent(Generic[T]):
    """Starts at once; whoever leaves its context without having asked for the result stops it.

    Arguments:
        work: touches nothing that the search changes; ends soon once its event is set.
    """

    def __init__(self, work: Callable[[threading.Event], T]) -> None:
        self._stop = threading.Event()
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(work,), name="lowtide-concurrent", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[threading.Event], T]) -> None:
        try:
            self._results.append(work(self._stop))
        except BaseException as error:  # raised again by whoever asks for the result
            self._errors.append(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE_s)

    def stopped(self) -> T | None:
        """Stops it and returns what it came to until then; None if it does not end soon.

        Raises: what the work raised.
        """
        self._stop.set()
        self._thread.join(_PATIENCE_s)
        if self._errors:
            raise self._errors[0]
        return self._results[0] if self._results else None

    def result(self, tick: Callable[[], None]) -> T:
        """Waits for it.

        Arguments:
            tick: called meanwhile, now and then; what it raises ends the wait.

        Raises: what the work raised.
        """
        while self._thread.is_alive():
            self._thread.join(_POLL_s)
            tick()
        if self._errors:
            raise self._errors[0]
        return self._results[0]
