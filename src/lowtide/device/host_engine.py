"""Computes in host memory beside the device: one thread that runs operators, one after another. Units: `_s` seconds."""

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
class HostEngine:
    """A thread that works beside compute. It begins with its first job; a forked child begins one of its own.

    Invariant: every job that was submitted happens, also after one that failed; what comes then does no work.

    Arguments:
        runs, busy_s: jobs that have ended, and their seconds.
        failure: what the first job that failed has raised; `failed` hands it over once.
    """

    runs: int = 0
    busy_s: float = 0.0
    failure: BaseException | None = None
    _jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _process: int = 0
    _last: Event | None = None

    def submit(self, work: Callable[[], object], after: Sequence[Happening]) -> Event:
        """Begins a job as soon as its turn has come and all of `after` has happened."""
        if self._thread is None or self._process != os.getpid():
            self._jobs, self._process = queue.SimpleQueue(), os.getpid()
            self._thread = threading.Thread(target=_serve, args=(self, self._jobs), name="lowtide host", daemon=True)
            self._thread.start()
        done = self._last = Event()
        self._jobs.put(_Job(work, after, done))
        return done

    def failed(self) -> BaseException | None:
        """What went wrong since this was asked last."""
        failure, self.failure = self.failure, None
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


def _serve(engine: HostEngine, jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        for happening in job.after:
            happening.settle()
        start = time.perf_counter()
        try:
            if engine.failure is None:
                with torch.no_grad(), nothing_engaged():
                    job.work()
        except BaseException as error:  # the thread that computes raises it
            engine.failure = error
        engine.busy_s += time.perf_counter() - start
        engine.runs += 1
        done = job.done
        del job  # and the tensors that it named
        done.set()
