"""One direction of copying concurrent with compute: a thread on the CPU, whose link can be held to a rate.

Copies of one direction run one after another, in the order in which they were submitted. A copy that was submitted
keeps nothing alive: whoever submits it sees to it that both ends are kept until it has happened.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from lowtide._core import Copier, Event
from lowtide.device.transfer_stats import Traffic


class Happening(Protocol):
    """The end of a copy, or of a run on the host."""

    @property
    def is_set(self) -> bool: ...
    def settle(self) -> None:
        """Waits on the processor until it has happened, whatever signals come."""


class Lost(Protocol):
    """Seconds that compute lost by a wait on the device, once they are known."""

    @property
    def is_known(self) -> bool: ...
    def time_s(self) -> float:
        """The seconds; waits until they are known."""


class CopyEngine(ABC):
    """Copies bytes in one direction.

    Arguments:
        waits_on_device: whether it is the device that waits in `wait`, and not the processor: then the processor, and
            whatever runs there, has still to wait for itself.
    """

    waits_on_device: bool = False

    @property
    def latest(self) -> Happening | None:
        """The end of the copy that was submitted last, where a processor does not learn of it otherwise."""
        return None

    @abstractmethod
    def submit(self, target: torch.Tensor, source: torch.Tensor, size_B: int, after: Sequence[Happening]) -> Happening:
        """Begins a copy as soon as its turn has come and all of `after` has happened.

        Arguments:
            target, source: tensors of the same content; their first `size_B` bytes are copied.
        """

    @abstractmethod
    def wait(self, happening: Happening) -> float | Lost:
        """Holds compute until it has happened.

        Returns: seconds that compute lost, or where they can be found out.
        """

    @abstractmethod
    def drain(self) -> None:
        """Waits until every copy has ended, whatever signals come."""

    @abstractmethod
    def stop(self) -> None:
        """Drops what has not begun; the next copy begins anew."""

    @abstractmethod
    def traffic(self) -> Traffic:
        """What it did so far."""


class ThreadedCopies(CopyEngine):
    """A thread that copies between two places of this process's memory.

    Arguments:
        limit_Bps: the rate of the link it stands for; None for as fast as memory is.
    """

    def __init__(self, limit_Bps: float | None = None) -> None:
        self._copier = Copier(limit_Bps or 0.0)
        self._limit_Bps = limit_Bps

    def submit(self, target: torch.Tensor, source: torch.Tensor, size_B: int, after: Sequence[Happening]) -> Happening:
        events = [event for event in after if isinstance(event, Event)]
        return self._copier.submit(target.data_ptr(), source.data_ptr(), size_B, events)

    def wait(self, happening: Happening) -> float:
        assert isinstance(happening, Event)
        start = time.perf_counter()
        happening.wait()
        return time.perf_counter() - start

    def drain(self) -> None:
        self._copier.drain()

    def stop(self) -> None:
        self._copier.stop()

    def traffic(self) -> Traffic:
        copies, moved_B, busy_s = self._copier.traffic()
        return Traffic(copies, moved_B, busy_s, self._limit_Bps)
