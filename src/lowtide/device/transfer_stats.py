"""What was transferred, how busy the links were, and how long compute waited for them.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from lowtide.device.copies import Lost


class Traffic(msgspec.Struct, frozen=True):
    """What one direction of the link did.

    Arguments:
        copies: that have ended.
        moved_B: their bytes.
        busy_s: from the beginning to the end of each, summed.
        rate_Bps: to which the direction is held; None where nothing limits it.
    """

    copies: int = 0
    moved_B: int = 0
    busy_s: float = 0.0
    rate_Bps: float | None = None

    @property
    def achieved_Bps(self) -> float:
        """Bytes per second while it was busy; 0 before it was."""
        return self.moved_B / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def share(self) -> float | None:
        """Of its rate, what was achieved while it was busy; None without a rate."""
        return self.achieved_Bps / self.rate_Bps if self.rate_Bps else None


class Stall(msgspec.Struct, frozen=True):
    """How often, and for how long in sum, compute waited for the copies of one value."""

    value: str
    count: int
    time_s: float


class TransferStats(msgspec.Struct, frozen=True):
    """What the copy engines of one budget did since they were made.

    Arguments:
        to_host, from_host: per direction.
        stalls, stalled_s: how often compute waited for a copy that was late, and for how long in sum.
        by_value: the same per value, the longest first.
        host_runs, host_busy_s: operators that ran on the host, and their seconds.
        host_budget_B: the hard limit of what is offloaded to the host, persistent host storages apart.
        host_in_use_B, host_peak_B: bytes there now, and at most.
    """

    to_host: Traffic = Traffic()
    from_host: Traffic = Traffic()
    stalls: int = 0
    stalled_s: float = 0.0
    by_value: tuple[Stall, ...] = ()
    host_runs: int = 0
    host_busy_s: float = 0.0
    host_budget_B: int = 0
    host_in_use_B: int = 0
    host_peak_B: int = 0


class Stalls:
    """Counts waits. Seconds of a wait on a GPU are known later; what is known is taken in with every further wait."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}
        self._open: deque[tuple[str, Lost]] = deque()

    def add(self, value: str, lost: float | Lost) -> None:
        """One wait for a value's copy."""
        if isinstance(lost, float):
            self._count(value, lost)
            return
        while self._open and self._open[0][1].is_known:
            self._take_first()
        self._open.append((value, lost))

    @property
    def pending(self) -> int:
        """Waits whose seconds are not known yet."""
        return len(self._open)

    def _take_first(self) -> None:
        value, lost = self._open.popleft()
        self._count(value, lost.time_s())

    def _count(self, value: str, time_s: float) -> None:
        count, total_s = self._known.get(value, (0, 0.0))
        self._known[value] = (count + 1, total_s + time_s)

    def by_value(self) -> tuple[Stall, ...]:
        """Per value, the longest first."""
        while self._open:
            self._take_first()
        found = (Stall(value, count, time_s) for value, (count, time_s) in self._known.items())
        return tuple(sorted(found, key=lambda s: (-s.time_s, s.value)))
