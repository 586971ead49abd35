"""The clock of a solve: its limits, how good its best plan is, what is proved, and who is told about it.

A search holds a clock and is its `Incumbent`: it keeps the best plan in whatever form it has, and the clock asks for no
more than its time. A search below another one runs by the same deadline, and tells the clock above it of its progress.

Units: `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from lowtide.ir.plan import DEFAULT_WORK, Status
from lowtide.planners.base import Progress, Watch

GAP = 0.005  # close enough to stop: the plan is at most this much slower than the bound
STEPS = 10_000  # of training in which the default search has to pay for itself
_EXACT = 1e-9  # relative; float sums of seconds are not closer
_EQUAL = 1e-6  # relative; the solver's dual bounds are not closer

Result = TypeVar("Result")


class OutOfTime(Exception):
    """The problem's time limit has passed."""


def worth_s(time_ps: float, bound_ps: float, work: int) -> float:
    """Seconds of searching that can pay for themselves: what may be gained in `STEPS` steps, more for more work.

    Nobody gets back the seconds of a long search for a gap of microseconds.
    """
    return (time_ps - bound_ps) * 1e-12 * STEPS * work / DEFAULT_WORK


@dataclass(frozen=True)
class Deadline:
    """A limit of time.

    Arguments:
        limit_s: since it began; None for no limit.
        began_s: by the monotonic clock.
    """

    limit_s: float | None = None
    began_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s

    @property
    def left_s(self) -> float | None:
        """Seconds until then; None without a limit."""
        return None if self.limit_s is None else self.limit_s - self.elapsed_s

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.limit_s is not None and self.elapsed_s >= self.limit_s

    def part(self, share: float) -> Deadline:
        """The deadline after a share of the whole time."""
        return Deadline(None if self.limit_s is None else share * self.limit_s, self.began_s)

    def rest(self, share: float) -> Deadline:
        """The deadline after a share of the time that is left."""
        if self.limit_s is None:
            return self
        elapsed_s = self.elapsed_s
        return Deadline(elapsed_s + share * max(0.0, self.limit_s - elapsed_s), self.began_s)


class Incumbent(Protocol):
    """What a search has come to."""

    @property
    def time_ps(self) -> float | None:
        """Of the best plan; None without one."""

    @property
    def work(self) -> int:
        """Proposals tried so far."""


@dataclass
class Clock:
    """One solve in progress.

    Invariant: `bound_ps` is a proved lower bound on the time of every schedule that the solve may find.

    Arguments:
        deadline: when to stop.
        incumbent: what the search has come to.
        plain_ps: time of the program without recomputation.
        watch: called with the progress.
        close: relative distance from the bound at which a plan is close enough.
    """

    deadline: Deadline
    incumbent: Incumbent
    plain_ps: float
    watch: Watch | None = None
    close: float = GAP
    bound_ps: float = 0.0
    stage: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the solve began."""
        return self.deadline.elapsed_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit; None without one."""
        return self.deadline.left_s

    @property
    def gap(self) -> float:
        """How much slower than the bound the best plan may be; infinite without one."""
        time_ps = self.incumbent.time_ps
        if time_ps is None:
            return float("inf")
        return max(0.0, time_ps / self.bound_ps - 1.0) if self.bound_ps > 0 else 0.0

    def is_close(self) -> bool:
        """Whether the best plan is close enough to the bound to stop."""
        return self.gap <= self.close

    def prove(self, bound_ps: float) -> None:
        """Notes a proved lower bound on the time of any schedule."""
        self.bound_ps = max(self.bound_ps, bound_ps)

    def tick(self) -> None:
        """Tells the watcher, and stops the solve when its time is over.

        Raises:
            OutOfTime: then.
        """
        self._tell(self.stage, self.incumbent.time_ps, self.incumbent.work)
        if self.deadline.is_over:
            raise OutOfTime

    def relay(self, below: Progress, *, counts: bool = True) -> None:
        """Tells the watcher what a search below this one says, as progress of this one.

        Arguments:
            counts: whether its plans are plans of this solve as they are, and its work is in `incumbent.work` already.
        """
        time_ps, work = self.incumbent.time_ps, self.incumbent.work
        if counts and below.time_s is not None:
            time_ps = min(below.time_s * 1e12, float("inf") if time_ps is None else time_ps)
        self._tell(self.stage or below.stage, time_ps, work if counts else work + below.work)

    def _tell(self, stage: str, time_ps: float | None, work: int) -> None:
        if self.watch is not None:
            time_s = None if time_ps is None else time_ps * 1e-12
            self.watch(Progress(stage, self.elapsed_s, time_s, self.bound_ps * 1e-12, work, self.plain_ps * 1e-12))

    def run(self, name: str, stage: Callable[[], Result]) -> Result:
        """Runs one stage of the solve and notes its seconds."""
        self.stage = name
        start_s = self.elapsed_s
        try:
            self.tick()
            return stage()
        finally:
            key = f"{name}_s"
            self.stats[key] = self.stats.get(key, 0.0) + self.elapsed_s - start_s

    def conduct(self, script: Callable[[], object]) -> None:
        """Runs the whole solve, which time or Ctrl-C may cut short.

        Raises:
            KeyboardInterrupt: on Ctrl-C before there is a plan.
        """
        try:
            script()
        except OutOfTime:
            self.stats["out_of_time"] = True
        except KeyboardInterrupt:
            if self.incumbent.time_ps is None:
                raise
            self.interrupted = True

    def status(self, *, impossible: bool) -> Status:
        """What the solve came to.

        Arguments:
            impossible: whether it is proved that there is no plan.
        """
        time_ps = self.incumbent.time_ps
        if time_ps is None:
            return Status.INFEASIBLE if impossible else Status.UNSOLVED
        if time_ps <= self.bound_ps * (1.0 + _EQUAL):
            return Status.OPTIMAL
        return Status.INTERRUPTED if self.interrupted else Status.FEASIBLE

    def proved_s(self, rounded: int = 0) -> float:
        """The bound in seconds, carefully.

        Arguments:
            rounded: how many times that it sums up have been rounded to picoseconds.
        """
        return max(0.0, self.bound_ps - rounded) * 1e-12 * (1.0 - _EXACT)
