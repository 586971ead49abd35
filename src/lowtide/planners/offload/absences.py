"""A schedule -> its runs in order, and what is absent from the device between them.

A *place* is where steps that are no runs may stand: place p is before the p-th run or boundary, the last place is the
end. A value is *absent* from the place of its drop to the place of its fetch; what it comes back from is a *copy* on
the host, which a send or a run there makes, or which is host-resident. In the schedule as it is given, copies take no
time: the bytes per place that are found here are those of values that come just before they are needed and go at once.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import IllegalPlan
from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule, Send, memory_of

NEVER_THERE = -1


@dataclass(slots=True)
class Copy:
    """A value's residency on the host.

    Arguments:
        earliest, due: the places between which it is sent; `due` is None where nothing is sent.
        host_resident: whether the value, or what it replaces, is host-resident, so that it takes no further bytes and
            stays.
        until: the place after which the schedule drops it; None if it does not.
        readers: places of runs on the host that read it.
    """

    value: int
    earliest: int = 0
    due: int | None = None
    host_resident: bool = False
    until: int | None = None
    readers: list[int] = field(default_factory=list)
    absences: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Absence:
    """A value that is not on the device from place `leave` to, without, place `back`; None for the rest.

    Arguments:
        leave: NEVER_THERE for a host-resident value that has not been on the device yet.
    """

    value: int
    leave: int
    back: int | None
    copy: int


@dataclass(slots=True)
class Anchor:
    """A run or a boundary.

    Arguments:
        inner_B: device bytes that it takes on top of what is live before it.
        change_B: what it changes of the live bytes, by what it makes, overwrites and frees.
        time_s: of the run.
        computes: whether it runs on the device.
        reads: values that it reads and that come by fetch at some time.
        drops: values freed for good between it and the next one.
    """

    step: Run | Boundary
    recipe: Recipe | None
    segment: int
    inner_B: int = 0
    change_B: int = 0
    drops: list[int] = field(default_factory=list)
    host_change_B: int = 0
    time_s: float = 0.0
    computes: bool = True
    reads: tuple[int, ...] = ()


@dataclass(slots=True)
class Absences:
    """What there is to time; see the module.

    Arguments:
        free_B: per place the most device bytes at once from there through the run behind it.
        host_B: per place the most host bytes.
        start_B: device bytes before anything has run.
    """

    anchors: list[Anchor]
    absences: list[Absence]
    copies: list[Copy]
    free_B: NDArray[np.int64]
    host_B: NDArray[np.int64]
    start_B: int
    host_start_B: int


def find_absences(graph: Graph, schedule: Schedule) -> Absences:
    """Reads a legal schedule. O(steps + segments * values)."""
    walk = _Walk(graph)
    for step in schedule.steps:
        walk.step(step)
    return walk.result()


def is_spare(found: Absences, copy: Copy) -> bool:
    """Whether a copy is only made for its value to come back from: if that is kept, nothing needs sending."""
    if copy.due is None or copy.host_resident or copy.readers or not copy.absences:
        return False
    return all(found.absences[a].back is not None for a in copy.absences)


class _Walk:
    """The state between two steps of the schedule."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.size_B = [v.size_B for v in graph.values]
        self.anchors: list[Anchor] = []
        self.absences: list[Absence] = []
        self.copies: list[Copy] = []
        self.on_device = {v.id for v in graph.values if v.persistent and v.memory == DEVICE}
        self.since: dict[int, int] = {}  # resident value -> the first place after it came
        self.sent: dict[int, int] = {}  # resident value -> its copy, sent during this residency
        self.on_host: dict[int, int] = {}  # value -> its copy
        self.old: dict[int, int] = {}  # value -> a copy that was dropped and may be taken up again
        self.left: dict[int, tuple[int, int | None]] = {}  # value -> where it was dropped, and the copy sent before
        for value in graph.values:
            if value.persistent and value.memory != DEVICE:
                self._copy(value.id, Copy(value.id, host_resident=True))
        self.live_B = self.start_B = sum(self.size_B[v] for v in self.on_device)
        self.host_now_B = self.host_start_B = sum(self.size_B[v] for v in self.on_host)
        self.free_B: list[int] = []
        self.host_B: list[int] = [self.host_now_B]
        self.leaving: dict[int, list[int]] = {}
        self.arriving: dict[int, list[int]] = {}
        for value in graph.values:
            if value.leaves is not None and not (value.held or value.persistent):
                self.leaving.setdefault(value.leaves, []).append(value.id)
            if value.arrives is not None and not (value.persistent and value.memory != DEVICE):
                self.arriving.setdefault(value.arrives, []).append(value.id)
        self.segment = -1

    @property
    def place(self) -> int:
        return len(self.anchors)

    def step(self, step: object) -> None:
        match step:
            case Run():
                self._run(step)
            case Boundary():
                self._boundary(step)
            case Drop(value=value, memory=memory):
                if memory == DEVICE:
                    self._drop(value)
                else:
                    self._drop_copy(value)
            case Send(value=value):
                self._send(value)
            case Fetch(value=value):
                self._fetch(value)

    def result(self) -> Absences:
        self._settle(list(self.left))
        away = {a.value for a in self.absences}
        for anchor in self.anchors:
            if anchor.recipe is not None:
                anchor.reads = tuple(v for v in away.intersection(self._reads(anchor.recipe)))
        self.free_B.append(self.live_B)
        count = self.place + 1
        return Absences(
            self.anchors,
            self.absences,
            self.copies,
            np.array(self.free_B, dtype=np.int64),
            np.array(self.host_B[:count], dtype=np.int64),
            self.start_B,
            self.host_start_B,
        )

    def _reads(self, recipe: Recipe) -> list[int]:
        found = [read.value for read in recipe.reads]
        if recipe.state is not None:
            found.append(recipe.state)
        return found

    def _copy(self, value: int, copy: Copy) -> int:
        self.copies.append(copy)
        self.on_host[value] = len(self.copies) - 1
        return len(self.copies) - 1

    def _anchor(self, anchor: Anchor, peak_B: int) -> None:
        self.anchors.append(anchor)
        self.free_B.append(peak_B)
        self.host_now_B += anchor.host_change_B
        self.host_B.append(self.host_now_B)

    def _come(self, value: int, place: int) -> None:
        self.on_device.add(value)
        self.since[value] = place
        self.live_B += self.size_B[value]

    def _go(self, value: int) -> None:
        if value not in self.on_device:
            raise IllegalPlan(f"value {value} ({self.graph.values[value].name}) is dropped where it is not")
        self.on_device.discard(value)
        self.sent.pop(value, None)
        self.live_B -= self.size_B[value]

    def _run(self, step: Run) -> None:
        recipe = self.graph.recipes[step.recipe]
        on_device = memory_of(recipe.engine) == DEVICE
        before_B, host_change_B, inner_B = self.live_B, 0, 0
        if on_device:
            inner_B = recipe.trace.peak_B
            replay = recipe.effect is Effect.PURE and recipe.state is not None
            if recipe.state is not None and (replay or recipe.state in step.keep):
                inner_B += self.size_B[recipe.state]
        anchor = Anchor(step, recipe, self.segment, inner_B, time_s=recipe.time_s, computes=on_device)
        if on_device:
            self._settle(step.keep)
            for takeover in recipe.consumes:
                self._go(takeover.value)
        else:
            for v in recipe.read_values:
                if v in self.on_host:
                    self.copies[self.on_host[v]].readers.append(self.place)
            for takeover in recipe.consumes:
                host_change_B -= self.size_B[takeover.value]
                self.on_host.pop(takeover.value, None)
        for v in step.keep:
            if not on_device:
                host_change_B += self.size_B[v]
                self._copy(v, Copy(v, self.place + 1, host_resident=self._is_host_resident(v)))
            elif v not in self.on_device:
                self._come(v, self.place + 1)
        anchor.change_B, anchor.host_change_B = self.live_B - before_B, host_change_B
        self._anchor(anchor, before_B + inner_B)

    def _boundary(self, step: Boundary) -> None:
        before_B = self.live_B
        for v in self.leaving.get(self.segment, ()):
            if v in self.on_device:
                self._go(v)
        self.segment = step.segment
        anchor = Anchor(step, None, step.segment)
        arriving = self.arriving.get(step.segment, ())
        self._settle(arriving)
        for v in arriving:
            if v not in self.on_device:
                self._come(v, self.place + 1)
        anchor.change_B = self.live_B - before_B
        anchor.inner_B = max(0, anchor.change_B)
        self._anchor(anchor, max(before_B, self.live_B))

    def _drop(self, value: int) -> None:
        self.left[value] = (self.place, self.sent.get(value))
        self._go(value)

    def _settle(self, values: Sequence[int]) -> None:
        """What was dropped does not come back by a fetch: it is gone, or its copy is still being made."""
        for v in values:
            if v not in self.left:
                continue
            place, copy = self.left.pop(v)
            if copy is None:
                self.anchors[place - 1].drops.append(v)
            else:
                self._absence(v, place, None, copy)

    def _absence(self, value: int, leave: int, back: int | None, copy: int) -> None:
        self.copies[copy].absences.append(len(self.absences))
        self.absences.append(Absence(value, leave, back, copy))

    def _send(self, value: int) -> None:
        earliest = min(self.since.get(value, 0), self.place)
        copy = self.old.pop(value, None)
        if copy is not None:  # the same bytes once more: the first copy is kept
            self.copies[copy].until = None
            self.on_host[value] = copy
        else:
            host_resident = self._is_host_resident(value)
            copy = self._copy(value, Copy(value, earliest, self.place, host_resident))
            replaced = self.graph.values[value].replaces
            if replaced is not None and replaced in self.on_host:
                self.on_host.pop(replaced)
                self.host_now_B -= self.size_B[replaced]
        self.sent[value] = copy
        self._add_host(self.size_B[value])

    def _is_host_resident(self, value: int) -> bool:
        v = self.graph.values[value]
        return v.replaces is not None or v.persistent or (v.leaves is not None and v.memory != DEVICE)

    def _add_host(self, size_B: int) -> None:
        self.host_now_B += size_B
        self.host_B[-1] = max(self.host_B[-1], self.host_now_B)

    def _drop_copy(self, value: int) -> None:
        copy = self.on_host.pop(value)
        self.copies[copy].until = self.place
        self.host_now_B -= self.size_B[value]
        if not self.copies[copy].host_resident and self.copies[copy].due is not None:
            self.old[value] = copy

    def _fetch(self, value: int) -> None:
        copy = self.on_host[value]
        if value in self.left:
            place, _ = self.left.pop(value)
            self._absence(value, place, self.place, copy)
        else:  # it has not been on the device yet
            self._absence(value, NEVER_THERE, self.place, copy)
        self._come(value, self.place)
