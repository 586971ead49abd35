"""How busy other programs keep the processor, from what the kernel counts. Linux; elsewhere nothing is known.

Units: `_s` seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # the fields of /proc/stat that are no work: idle, and waiting for a disk
_GUESTS = 8  # the fields from here on are counted in earlier ones already
_SPARE = 0.25  # of a core: what a quiet machine does anyway


class OtherWork:
    """Watches the processor from one question to the next.

    Arguments:
        threads: that this process computes on.
        cores: that there are; None for those of the machine.
    """

    def __init__(self, threads: int, cores: int | None = None) -> None:
        self._threads, self._cores = threads, cores or os.cpu_count() or 1
        self._since_s, self._busy_s, self._own_s = self._now()

    @property
    def watched_s(self) -> float:
        """Seconds since the last question."""
        return time.monotonic() - self._since_s

    def cores(self) -> float:
        """Cores that other programs kept busy since the last question, on average; 0 where nothing is known."""
        since_s, busy_s, own_s = self._now()
        span_s = since_s - self._since_s
        found = (busy_s - self._busy_s - (own_s - self._own_s)) / span_s if span_s > 0 else 0.0
        self._since_s, self._busy_s, self._own_s = since_s, busy_s, own_s
        return max(0.0, found)

    def disturbs(self) -> bool:
        """Whether other programs took cores, since the last question, that this one computes on."""
        return self.cores() + self._threads > self._cores + _SPARE

    def _now(self) -> tuple[float, float, float]:
        """The time, seconds of work of all programs on all cores, and of this one."""
        own = os.times()
        return time.monotonic(), _busy_s(), own.user + own.system


def _busy_s() -> float:
    try:
        ticks = [int(n) for n in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return 0.0
    work = sum(n for i, n in enumerate(ticks[:_GUESTS]) if i not in _IDLE)
    return work / os.sysconf("SC_CLK_TCK")
