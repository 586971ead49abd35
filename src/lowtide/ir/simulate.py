"""What a schedule means, step by step: live bytes, peaks, seconds, and the residencies of values in device memory.

The meaning is defined for legal schedules of well-formed graphs (`lowtide.ir.check`); where a step makes no sense at
all (dropping what is not there) it raises. Time: steps of one engine run one after another, in issue order. A step on
another engine starts no earlier than the compute steps issued before it have finished, is concurrent with those issued
after it, and what reads its results waits for it.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from lowtide.errors import IllegalPlan, PlanError
from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.layout import Residency
from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import DEVICE, HOST, Boundary, Drop, Fetch, Run, Schedule, Send, Step, memory_of

COMPUTE = "compute"


class Instant(msgspec.Struct, frozen=True, gc=False):
    """One step of a schedule: device bytes before, at most during, and after it, and when it runs on which engine."""

    step: int
    segment: int
    live_before_B: int
    peak_B: int
    live_after_B: int
    start_s: float
    stop_s: float
    engine: str = COMPUTE


class Timeline(msgspec.Struct, frozen=True, dict=True):
    """What a schedule does, step by step.

    Arguments:
        instants: one per step, in issue order.
        memory_peaks_B: most bytes at once per memory, the device's first.
    """

    instants: tuple[Instant, ...]
    memory_peaks_B: tuple[tuple[str, int], ...]

    @cached_property
    def peak_B(self) -> int:
        """Most device bytes at once."""
        return self.memory_peaks_B[0][1]

    @cached_property
    def peak_step(self) -> int | None:
        """The first step that reaches the peak; None for a schedule without steps."""
        return next((m.step for m in self.instants if m.peak_B == self.peak_B), None)

    @cached_property
    def time_s(self) -> float:
        """Seconds from the first start to the last stop, over all engines."""
        return max((m.stop_s for m in self.instants), default=0.0)


def simulate(graph: Graph, schedule: Schedule, machine: Machine | None = None) -> Timeline:
    """Follows a schedule and says what it costs at every step.

    Arguments:
        graph: well-formed, with traces and times.
        schedule: legal for the graph.
        machine: its links time `Send` and `Fetch`; without links they take no time.

    Returns: one instant per step.

    Raises:
        IllegalPlan: if a step drops, consumes, sends or fetches what is not there.
        PlanError: if the machine has links, but none for a copy of the schedule.

    O(steps), and O(values) per boundary.
    """
    walk = _Walk(graph, machine)
    return Timeline(tuple(walk.step(step) for step in schedule.steps), tuple(walk.top_B.items()))


class _Walk:
    """The state between two steps.

    Invariant: `now_B[m]` is the sum of the sizes of the values in `live[m]`, for every memory m.
    """

    def __init__(self, graph: Graph, machine: Machine | None) -> None:
        self.graph = graph
        self.size_B = [v.size_B for v in graph.values]
        self.links = _links(machine)
        self.index = -1
        self.segment = 0
        self.live: dict[str, set[int]] = {DEVICE: set(), HOST: set()}
        for value in graph.values:
            if value.persistent:
                self.live.setdefault(value.memory, set()).add(value.id)
        self.now_B: dict[str, int] = {m: sum(self.size_B[v] for v in there) for m, there in self.live.items()}
        self.top_B = {DEVICE: self.now_B[DEVICE]} | ({HOST: self.now_B[HOST]} if self.live[HOST] else {})
        self.inner_B: dict[int, int] = {}
        self.free_s: dict[str, float] = {COMPUTE: 0.0}  # engine -> when it can take the next step
        self.stops_s: list[float] = []
        self.ready_s: dict[tuple[int, str], float] = {}  # what engines other than compute bring, and when

    def step(self, step: Step) -> Instant:
        self.index += 1
        before_B = self.now_B[DEVICE]
        start_s = stop_s = self.free_s[COMPUTE]
        engine, inner_B = COMPUTE, 0
        match step:
            case Run():
                recipe = self.graph.recipes[step.recipe]
                engine, inner_B = recipe.engine, self._run(step, recipe)
                memory = memory_of(engine)
                start_s, stop_s = self._time(engine, recipe.time_s, step.after, recipe.read_values, memory)
                if engine != COMPUTE:
                    self.ready_s.update(((value, memory), stop_s) for value in step.keep)
            case Drop():
                if step.after:  # compute waits until no other engine uses the bytes
                    start_s, stop_s = self._time(COMPUTE, 0.0, step.after, (), step.memory)
                self._leave(step.value, step.memory)
            case Boundary():
                self._boundary(step.segment)
            case Send():
                engine, start_s, stop_s = self._copy(step, DEVICE, step.memory)
            case Fetch():
                engine, start_s, stop_s = self._copy(step, step.memory, DEVICE)
        self.stops_s.append(stop_s)
        after_B = self.now_B[DEVICE]
        peak_B = before_B + inner_B if isinstance(step, Run) else max(before_B, after_B)
        self.top_B[DEVICE] = max(self.top_B[DEVICE], peak_B)
        return Instant(self.index, self.segment, before_B, peak_B, after_B, start_s, stop_s, engine)

    def _run(self, step: Run, recipe: Recipe) -> int:
        """Updates what is live; returns the device bytes the recipe needs on top of what was live before it."""
        memory = memory_of(recipe.engine)
        inner_B = self.inner_B.get(recipe.id)
        if inner_B is None:
            inner_B = recipe.trace.peak_B
            if recipe.effect is Effect.PURE and recipe.state is not None:
                inner_B += self.size_B[recipe.state]  # a replay saves the generator's own state
            self.inner_B[recipe.id] = inner_B
        for takeover in recipe.consumes:
            self._leave(takeover.value, memory)
        for value in step.keep:
            self._come(value, memory)
        if recipe.effect is Effect.RANDOM and recipe.state is not None and recipe.state in step.keep:
            inner_B += self.size_B[recipe.state]  # saved before the operator allocates
        return inner_B if memory == DEVICE else 0

    def _boundary(self, segment: int) -> None:
        live = self.live[DEVICE]
        for value in self.graph.values:
            if value.leaves == segment - 1 and not (value.held or value.persistent) and value.id in live:
                self._leave(value.id, DEVICE)
        for value in self.graph.arriving:
            if value.arrives == segment and not (value.persistent and value.memory != DEVICE):
                self._come(value.id, DEVICE)
        self.segment = segment

    def _copy(self, step: Send | Fetch, source: str, target: str) -> tuple[str, float, float]:
        if step.value not in self.live.get(source, ()):
            raise IllegalPlan(f"step {self.index}: {self._name(step.value)} is not in memory {source!r}")
        base = self.graph.values[step.value].replaces
        if base is not None and base in self.live.get(target, ()):
            self._leave(base, target)
        self._come(step.value, target)
        if self.links:
            link = self.links.get((source, target))
            if link is None:
                raise PlanError(f"the machine has no link from {source!r} to {target!r}, which the schedule needs")
            engine = link.engine
            time_s = link.latency_s + self.size_B[step.value] / link.rate_Bps
        else:
            engine, time_s = (f"to_{target}" if source == DEVICE else f"from_{source}"), 0.0
        start_s, stop_s = self._time(engine, time_s, step.after, (step.value,), source)
        self.ready_s[step.value, target] = stop_s
        return engine, start_s, stop_s

    def _time(
        self, engine: str, time_s: float, after: tuple[int, ...], reads: tuple[int, ...], memory: str
    ) -> tuple[float, float]:
        start_s = max(self.free_s[COMPUTE], self.free_s.get(engine, 0.0))
        for earlier in after:
            start_s = max(start_s, self.stops_s[earlier])
        if self.ready_s:
            for value in reads:
                start_s = max(start_s, self.ready_s.get((value, memory), 0.0))
        stop_s = self.free_s[engine] = start_s + time_s
        return start_s, stop_s

    def _come(self, value: int, memory: str) -> None:
        live = self.live.setdefault(memory, set())
        if value not in live:
            live.add(value)
            now_B = self.now_B[memory] = self.now_B.get(memory, 0) + self.size_B[value]
            if memory != DEVICE:  # the device's peak is taken per step, with what recipes need inside
                self.top_B[memory] = max(self.top_B.get(memory, 0), now_B)

    def _leave(self, value: int, memory: str) -> None:
        live = self.live.get(memory, set())
        if value not in live:
            raise IllegalPlan(f"step {self.index}: {self._name(value)} is not in memory {memory!r}")
        live.discard(value)
        self.now_B[memory] -= self.size_B[value]
        self.ready_s.pop((value, memory), None)

    def _name(self, value: int) -> str:
        return f"value {value} ({self.graph.values[value].name})"


def _links(machine: Machine | None) -> dict[tuple[str, str], Link]:
    """Links by their ends; the machine's first memory is what schedules call the device."""
    if machine is None:
        return {}
    device = machine.memories[0].name if machine.memories else DEVICE

    def end(name: str) -> str:
        return DEVICE if name == device else name

    return {(end(link.source), end(link.target)): link for link in machine.links}


def residencies(graph: Graph, schedule: Schedule) -> tuple[Residency, ...]:
    """Finds every residency of bytes in device memory.

    A storage that passes to another value by consumption is one residency, under the value that came first: it cannot
    move. Empty values need no address and are left out; what recipes allocate inside is not here.

    Arguments:
        graph, schedule: as for `simulate`.

    Returns: ordered by start, then value. A value is there from the step that brings it up to, without, the step that
        drops it; through the step that overwrites or frees it; else to the end of the schedule.

    O(steps).
    """
    lifetimes = _Lifetimes(graph)
    for index, step in enumerate(schedule.steps):
        lifetimes.step(index, step)
    for value in list(lifetimes.open):
        lifetimes.close(value, len(schedule.steps))
    return tuple(sorted(lifetimes.closed, key=lambda r: (r.start, r.value)))


class _Lifetimes:
    """`open`: per resident value the value whose storage it lives in, since when, and by which engine."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.open: dict[int, tuple[int, int, str]] = {
            v.id: (v.id, 0, COMPUTE) for v in graph.values if v.persistent and v.memory == DEVICE
        }
        self.closed: list[Residency] = []

    def close(self, value: int, stop: int) -> None:
        owner, start, engine = self.open.pop(value)
        size_B = self.graph.values[owner].size_B
        if size_B and stop > start:
            self.closed.append(Residency(owner, start, stop, size_B, engine))

    def step(self, index: int, step: Step) -> None:
        match step:
            case Run():
                self._run(index, step)
            case Drop(value=value, memory=memory) if memory == DEVICE:
                self.close(value, index)
            case Fetch(value=value, memory=memory):
                self.open[value] = (value, index, f"from_{memory}")
            case Boundary(segment=segment):
                for v in self.graph.values:
                    if v.leaves == segment - 1 and not (v.held or v.persistent) and v.id in self.open:
                        self.close(v.id, index)
                for v in self.graph.arriving:
                    if v.arrives == segment and not (v.persistent and v.memory != DEVICE):
                        self.open.setdefault(v.id, (v.id, index, COMPUTE))

    def _run(self, index: int, step: Run) -> None:
        recipe = self.graph.recipes[step.recipe]
        if memory_of(recipe.engine) != DEVICE:
            return
        for takeover in recipe.consumes:
            heir = None if takeover.output is None else recipe.outputs[takeover.output]
            if heir is not None and heir in step.keep:
                self.open[heir] = self.open.pop(takeover.value)
            else:
                self.close(takeover.value, index + 1)
        for value in step.keep:
            self.open.setdefault(value, (value, index, recipe.engine))
