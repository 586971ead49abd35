"""Steps in any order -> the same steps with every wait between engines that `ir/check.py` demands, and no other.

What one engine does is in order by itself. A step waits for another engine where it reads what that one writes, frees
or overwrites what that one still reads or writes, or (a fetch) takes bytes that the device freed before. A wait that
follows from others is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule, Send, Step, memory_of

_COMPUTE = "compute"

Clock = dict[str, int]  # engine -> the last of its steps that is known to be done


def with_waits(graph: Graph, steps: Sequence[Step]) -> Schedule:
    """Completes a schedule.

    Arguments:
        steps: legal in this order but for their `after`, which is not read.

    Returns: the same steps with other `after`. A value that ends on the host is waited for by a step between the copy
        and the end of its segment, a drop if there is one; where there is no such step, it is not waited for.

    O(steps * engines + segments * values).
    """
    walk = _Walk(graph)
    for step in steps:
        walk.step(step)
    walk.boundary(walk.segment)
    return Schedule(tuple(walk.done))


class _Walk:
    """The steps so far, and what touches which bytes.

    Invariant: `clocks[engine]` is what is known to be done when the next step of that engine begins.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.segment = -1
        self.done: list[Step] = []
        self.engines: list[str] = []
        self.after: list[Clock] = []  # per step, what is known to be done once it is
        self.clocks: dict[str, Clock] = {}
        self.last_run = -1
        self.writers: dict[tuple[int, str], int] = {}
        self.users: dict[tuple[int, str], list[int]] = {}
        self.leaving: dict[int, list[int]] = {}
        self.overwritten: dict[int, list[int]] = {}
        for value in graph.values:
            if value.leaves is not None:
                self.leaving.setdefault(value.leaves, []).append(value.id)
            if value.readable_through is not None:
                self.overwritten.setdefault(value.readable_through, []).append(value.id)

    def step(self, step: Step) -> None:
        match step:
            case Run():
                self._run(step)
            case Drop(value=value, memory=memory):
                self._add(step, _COMPUTE, self._touching(value, memory))
                self._forget(value, memory)
            case Send(value=value, memory=memory):
                old = self.graph.values[value].replaces
                base = [] if old is None else self._touching(old, memory)
                index = self._add(step, f"to {memory}", [*self._writer(value, DEVICE), *base])
                self.users.setdefault((value, DEVICE), []).append(index)
                if old is not None:
                    self._forget(old, memory)
                self._write(value, memory, index)
            case Fetch(value=value, memory=memory):
                index = self._add(step, f"from {memory}", [*self._writer(value, memory), *self._given_up()])
                self.users.setdefault((value, memory), []).append(index)
                self._write(value, DEVICE, index)
            case Boundary(segment=segment):
                self.boundary(self.segment)
                self._add(step, _COMPUTE, ())
                self.segment = segment

    def boundary(self, ending: int) -> None:
        """A segment returns to the caller, who finds what leaves."""
        needed: list[int] = []
        for v in self.leaving.get(ending, ()):
            value = self.graph.values[v]
            needed += self._writer(v, value.memory)
            if value.memory == DEVICE and not (value.held or value.persistent):
                needed += self._touching(v, DEVICE)
        for v in self.overwritten.get(ending, ()):
            needed += self._touching(v, DEVICE)
        for engine, index in self._latest(needed).items():
            if engine != _COMPUTE and self.clocks.get(_COMPUTE, {}).get(engine, -1) < index:
                self._wait_early(engine, index)

    def _wait_early(self, engine: str, index: int) -> None:
        """Makes a step of compute that is there already wait for a copy: the last drop behind it, else the last run."""
        behind = [i for i in range(index + 1, len(self.done)) if self.engines[i] == _COMPUTE]
        drops = [i for i in behind if isinstance(self.done[i], Drop)]
        runs = [i for i in behind if isinstance(self.done[i], Run)]
        for i in (drops or runs)[-1:]:
            step = self.done[i]
            assert isinstance(step, Drop | Run)
            self.done[i] = replace(step, after=tuple(sorted({*step.after, index})))
            _merge(self.clocks[_COMPUTE], {**self.after[index], engine: index})

    def _run(self, step: Run) -> None:
        recipe = self.graph.recipes[step.recipe]
        memory = memory_of(recipe.engine)
        needed = [i for v in recipe.read_values for i in self._writer(v, memory)]
        for takeover in recipe.consumes:
            needed += self._touching(takeover.value, memory)
        index = self._add(step, recipe.engine, needed)
        if recipe.engine == _COMPUTE:
            self.last_run = index
        for v in recipe.read_values:
            self.users.setdefault((v, memory), []).append(index)
        for takeover in recipe.consumes:
            self._forget(takeover.value, memory)
        for v in step.keep:
            self._write(v, memory, index)

    def _given_up(self) -> list[int]:
        """After what bytes that compute has freed are free on the device: its last run, and copies it waited for."""
        waited = [i for engine, i in self.clocks.get(_COMPUTE, {}).items() if engine != _COMPUTE]
        return waited if self.last_run < 0 else [*waited, self.last_run]

    def _writer(self, value: int, memory: str) -> list[int]:
        index = self.writers.get((value, memory))
        return [] if index is None else [index]

    def _touching(self, value: int, memory: str) -> list[int]:
        return [*self._writer(value, memory), *self.users.get((value, memory), ())]

    def _write(self, value: int, memory: str, index: int) -> None:
        self.writers[value, memory] = index
        self.users[value, memory] = []

    def _forget(self, value: int, memory: str) -> None:
        self.writers.pop((value, memory), None)
        self.users.pop((value, memory), None)

    def _latest(self, needed: Iterable[int]) -> Clock:
        latest: Clock = {}
        for index in needed:
            engine = self.engines[index]
            latest[engine] = max(index, latest.get(engine, -1))
        return latest

    def _add(self, step: Step, engine: str, needed: Iterable[int]) -> int:
        """Appends a step that waits for all of `needed` that is not known to be done."""
        index = len(self.done)
        known = self.clocks.setdefault(engine, {})
        waits: list[int] = []
        for earlier in sorted(self._latest(needed).values(), reverse=True):
            if known.get(self.engines[earlier], -1) < earlier:
                waits.append(earlier)
                _merge(known, self.after[earlier])
        known[engine] = index
        self.engines.append(engine)
        self.after.append(dict(known))
        if isinstance(step, Run | Send | Fetch | Drop):
            step = replace(step, after=tuple(sorted(waits)))
        self.done.append(step)
        return index


def _merge(clock: Clock, other: Clock) -> None:
    for engine, index in other.items():
        if clock.get(engine, -1) < index:
            clock[engine] = index
