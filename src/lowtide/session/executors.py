"""The captured graphs of one session, each for as long as compiled code can call it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from lowtide.capture.captured import Captured
from lowtide.runtime.executor import Key, PlannedExecutor


class Entrance:
    """A handle on an executor that compiled code alone holds: when it dies, the code has gone."""

    def __init__(self, executor: PlannedExecutor) -> None:
        self._executor = executor

    @property
    def number(self) -> int:
        """That of the executor."""
        return self._executor.number

    @property
    def latest_key(self) -> Key:
        """The key under which the latest forward ran."""
        return self._executor.latest_key

    def forward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the graph's forward."""
        return self._executor.forward(arguments)

    def backward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the graph's backward."""
        return self._executor.backward(arguments)


class Executors:
    """Executors by their numbers.

    Code that Dynamo has given up, after an error or for other hooks, goes once its last backward has run. What is known
    of its graph then goes with `sweep`, not at once: Python collects garbage at any moment, in the middle of a step.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[PlannedExecutor, Captured]] = {}
        self._gone: deque[int] = deque()
        self._past_forwards = self._past_backwards = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[PlannedExecutor]:
        return (executor for executor, _ in list(self._known.values()))

    def admit(self, executor: PlannedExecutor, captured: Captured) -> Entrance:
        """Notes an executor with its graph; returns what compiled code calls."""
        self._known[executor.number] = (executor, captured)
        entrance = Entrance(executor)
        weakref.finalize(entrance, self._gone.append, executor.number).atexit = False
        return entrance

    def graph_of(self, executor: PlannedExecutor) -> Captured:
        """The graph that an executor stands for."""
        return self._known[executor.number][1]

    def sweep(self) -> Iterator[int]:
        """Drops the executors whose compiled code has gone; gives the number of each."""
        while self._gone:
            executor, _ = self._known.pop(self._gone.popleft())
            self._past_forwards += executor.forwards
            self._past_backwards += executor.backwards
            yield executor.number

    @property
    def forwards(self) -> int:
        """The number of forwards that really ran, those of executors that have gone as well."""
        return self._past_forwards + sum(e.forwards for e in self)

    @property
    def backwards(self) -> int:
        """The number of backwards that really ran, those of executors that have gone as well."""
        return self._past_backwards + sum(e.backwards for e in self)
