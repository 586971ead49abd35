"""Computes in host memory while the device computes: one thread that runs operators in order. Units: `_s` seconds."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from lowtide._core import Event
from lowtide.device.arena import nothing_engaged
from lowtide.device.copies import Happening


@dataclass(frozen=True)
class _Job:
    work: Callable[[], object]
    after: Sequence[Happening]
    done: Event


@dataclass(eq=False)
class _Record:
    """What the thread has done; it knows no more of its engine, which may go before it."""

    runs: int = 0
    busy_s: float = 0.0
    failure: BaseException | None = None


@dataclass(eq=False)
class HostEngine:
    """A thread that works while compute runs. It begins with its first job and ends with the engine; a forked child
    begins one of its own.

    Invariant: every job that was submitted happens, also after one that failed; what comes then does no work.
    """

    _record: _Record = field(default_factory=_Record)
    _jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _process: int = 0
    _last: Event | None = None

    @property
    def runs(self) -> int:
        """Jobs that have ended."""
        return self._record.runs

    @property
    def busy_s(self) -> float:
        """Their seconds."""
        return self._record.busy_s

    @property
    def failure(self) -> BaseException | None:
        """What the first job that failed has raised, until `failed` hands it over."""
        return self._record.failure

    def submit(self, work: Callable[[], object], after: Sequence[Happening]) -> Event:
        """Begins a job as soon as its turn has come and all of `after` has happened."""
        if self._thread is None or self._process != os.getpid():
            self._jobs, self._process = queue.SimpleQueue(), os.getpid()
            given = (self._record, self._jobs)
            self._thread = threading.Thread(target=_serve, args=given, name="lowtide host", daemon=True)
            self._thread.start()
        done = self._last = Event()
        self._jobs.put(_Job(work, after, done))
        return done

    def failed(self) -> BaseException | None:
        """What went wrong since this was asked last."""
        failure, self._record.failure = self._record.failure, None
        return failure

    def drain(self) -> None:
        """Waits until every job has ended, whatever signals come."""
        if self._last is not None and self._process == os.getpid():
            self._last.settle()

    def stop(self) -> None:
        """Ends the thread when its jobs have ended."""
        if self._thread is not None and self._process == os.getpid():
            self._jobs.put(None)
        self._thread = self._last = None

    def __del__(self) -> None:
        self.stop()


def _serve(record: _Record, jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        for happening in job.after:
            happening.settle()
        start = time.perf_counter()
        try:
            if record.failure is None:
                with torch.no_grad(), nothing_engaged():
                    job.work()
        except BaseException as error:  # the thread that computes raises it
            record.failure = error
        record.busy_s += time.perf_counter() - start
        record.runs += 1
        done = job.done
        del job  # and the tensors that it named
        done.set()
