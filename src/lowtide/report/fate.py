"""What becomes of each value under a schedule: when it is on the device, and how often it is recomputed or fetched.

Units: `_B` bytes, `_s` seconds. Step intervals are half open: `[start, stop)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lowtide.ir.graph import Effect, Graph
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule, memory_of


@dataclass(frozen=True, slots=True)
class Fate:
    """One value's life in a schedule.

    Arguments:
        value: its id.
        lifetimes: steps `[start, stop)` in which the device holds it, in order.
        recomputations: recipes that recomputed it after it had been produced once, in order, replays included.
        replays: how many of these were replays of a random operator.
        fetches: how often it was copied back from another memory.
        redo_s: seconds of one more run of the cheapest recipe that can produce it; 0 when none can.
        paid_s: seconds that the schedule spends on `recomputations`.
    """

    value: int
    lifetimes: tuple[tuple[int, int], ...]
    recomputations: tuple[int, ...]
    replays: int
    fetches: int
    redo_s: float
    paid_s: float

    def covering(self, step: int) -> tuple[int, int] | None:
        """The residency that contains `step`, or None."""
        return next((lifetime for lifetime in self.lifetimes if lifetime[0] <= step < lifetime[1]), None)

    def absence(self, step: int) -> tuple[int, int] | None:
        """The steps `[start, stop)` between two residencies that contain `step`, or None."""
        for (_, left), (back, _) in zip(self.lifetimes, self.lifetimes[1:], strict=False):
            if left <= step < back:
                return left, back
        return None

    def longest_absence(self) -> tuple[int, int] | None:
        """The longest stretch of steps between two residencies, or None when it was never dropped."""
        gaps = [(left, back) for (_, left), (back, _) in zip(self.lifetimes, self.lifetimes[1:], strict=False)]
        return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)


@dataclass(slots=True)
class _Log:
    """What the walk has seen of one value so far."""

    since: int | None = None
    lifetimes: list[tuple[int, int]] = field(default_factory=list)
    produced: bool = False
    recomputations: list[int] = field(default_factory=list)
    fetches: int = 0

    def arrive(self, step: int) -> None:
        if self.since is None:
            self.since = step

    def go(self, step: int) -> None:
        if self.since is not None:
            self.lifetimes.append((self.since, step))
            self.since = None


def fates(graph: Graph, schedule: Schedule) -> tuple[Fate, ...]:
    """Follows every value through the schedule.

    Arguments:
        graph: profiled, so that seconds mean something.
        schedule: legal for `graph`; an illegal one gives a picture of what it says, not an error.

    Returns:
        One fate per value, by id. O(steps + values).
    """
    logs = [_Log() for _ in graph.values]
    segment: int | None = None
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Boundary):
            _freed(graph, logs, segment, index)
            segment = step.segment
            for value in graph.values:
                host_resident = value.persistent and value.memory != DEVICE
                if not host_resident and (value.persistent or value.arrives == segment):
                    logs[value.id].arrive(index)
        elif isinstance(step, Run):
            _run(graph, logs, step, index)
        elif isinstance(step, Drop) and step.memory == DEVICE:
            logs[step.value].go(index)
        elif isinstance(step, Fetch):
            logs[step.value].arrive(index)
            logs[step.value].fetches += 1
    for log in logs:
        log.go(len(schedule.steps))
    return tuple(_fate(graph, value, log) for value, log in enumerate(logs))


def _freed(graph: Graph, logs: list[_Log], segment: int | None, index: int) -> None:
    """At the end of a segment the caller releases what left there without being held."""
    for value in graph.values:
        if segment is not None and value.leaves == segment and not value.held and not value.persistent:
            logs[value.id].go(index)


def _run(graph: Graph, logs: list[_Log], step: Run, index: int) -> None:
    recipe = graph.recipes[step.recipe]
    if memory_of(recipe.engine) != DEVICE:
        return
    for takeover in recipe.consumes:
        logs[takeover.value].go(index)
    for value in recipe.outputs:
        log = logs[value]
        if value in step.keep:
            if log.produced and log.since is None:
                log.recomputations.append(recipe.id)
            log.arrive(index)
        log.produced = True


def _fate(graph: Graph, value: int, log: _Log) -> Fate:
    recipes = [graph.recipes[r] for r in graph.producers[value]]
    repeatable = [r.time_s for r in recipes if r.effect is Effect.PURE]
    recomputations = [graph.recipes[r] for r in log.recomputations]
    return Fate(
        value=value,
        lifetimes=tuple(log.lifetimes),
        recomputations=tuple(log.recomputations),
        replays=sum(1 for r in recomputations if r.effect is Effect.PURE and r.state is not None),
        fetches=log.fetches,
        redo_s=min(repeatable, default=0.0),
        paid_s=sum(r.time_s for r in recomputations),
    )
