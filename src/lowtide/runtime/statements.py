"""Steps of a schedule -> statements: which names each uses, binds and deletes, and what it has to wait for.

A name stands for a value on the device, for its copy on the host, or for its prefetch, which may be under way. Steps of
one engine run in order; whatever reads, frees or overwrites bytes that another engine still touches waits first, as the
schedule's `after` says and where it says nothing. A wait that follows from earlier ones is left out. When a segment
ends nothing is in progress, so each begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.schedule import DEVICE, HOST, Boundary, Drop, Fetch, Run, Schedule, Send, Step, memory_of

Name = int
Clock = dict[str, int]  # engine -> how many of its jobs are known to be done


@dataclass(frozen=True)
class Names:
    """How values, their copies on the host and their prefetches are numbered: one after another, `values` of each."""

    values: int

    def on_host(self, value: int) -> Name:
        """The copy of a value on the host."""
        return self.values + value

    def fetch(self, value: int) -> Name:
        """The latest prefetch of a value."""
        return 2 * self.values + value

    def within(self, memory: str, value: int) -> Name:
        """A value in a memory."""
        return value if memory == DEVICE else self.on_host(value)


@dataclass(frozen=True)
class Statement:
    """One step.

    Arguments:
        uses, ends, binds: names that it reads, deletes, and makes, in that order.
        waits: names of copies that compute waits for before.
        after: names of copies that the engine waits for before.
        is_named: of a prefetch, whether anybody waits for it by name.
    """

    step: Step
    uses: tuple[Name, ...] = ()
    ends: tuple[Name, ...] = ()
    binds: tuple[Name, ...] = ()
    waits: tuple[Name, ...] = ()
    after: tuple[Name, ...] = ()
    is_named: bool = False

    @property
    def is_numbered(self) -> bool:
        """Whether the arena and the engines know it by a number: what runs or copies something."""
        return isinstance(self.step, Run | Send | Fetch)


def moves_anything(graph: Graph, schedule: Schedule) -> bool:
    """Whether a schedule needs copy engines, or computes on the host. O(steps)."""
    return any(
        isinstance(s, Send | Fetch) or (isinstance(s, Run) and memory_of(graph.recipes[s.recipe].engine) != DEVICE)
        for s in schedule.steps
    )


def split(schedule: Schedule, segments: int) -> list[list[tuple[int, Step]]]:
    """The steps of each segment with their numbers in the schedule, boundaries left out."""
    parts: list[list[tuple[int, Step]]] = [[] for _ in range(segments)]
    here = 0
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Boundary):
            here = step.segment
        else:
            parts[here].append((index, step))
    return parts


def statements_of(graph: Graph, steps: Sequence[tuple[int, Step]]) -> list[Statement]:
    """The statements of one segment. O(steps)."""
    walk = _Walk(graph, Names(len(graph.values)))
    for index, step in steps:
        walk.step(index, step)
    return _with_ends(walk.done, walk.names)


@dataclass(slots=True)
class _Job:
    """What an engine was given: its place among the engine's jobs, its name, and what is known when it is done."""

    engine: str
    place: int
    name: Name
    clock: Clock


@dataclass(eq=False)
class _Walk:
    """The segment so far.

    Invariant: a job that compute does not know to be done has a name that is bound to it, or to a later job of the same
    engine or one that waits for it.
    """

    graph: Graph
    names: Names
    done: list[Statement] = field(default_factory=list)
    known: Clock = field(default_factory=dict)  # to compute
    jobs: dict[int, _Job] = field(default_factory=dict)  # by step
    last: dict[str, _Job] = field(default_factory=dict)  # by engine
    writers: dict[Name, _Job] = field(default_factory=dict)
    users: dict[Name, list[_Job]] = field(default_factory=dict)
    called: dict[Name, list[_Job]] = field(default_factory=dict)  # the jobs that have a name now

    def step(self, index: int, step: Step) -> None:
        match step:
            case Run():
                recipe = self.graph.recipes[step.recipe]
                if memory_of(recipe.engine) == DEVICE:
                    self._run(step, recipe)
                else:
                    self._host_run(index, step, recipe)
            case Drop():
                name = self.names.within(step.memory, step.value)
                waits = self._wait((*self._named(step.after), *self._touching(name)))
                self._free(name)
                self.done.append(Statement(step, (*waits, name), (name,), (), waits))
            case Send():
                self._send(index, step)
            case Fetch():
                self._fetch(index, step)

    def _run(self, step: Run, recipe: Recipe) -> None:
        reads = recipe.read_values
        ends = tuple(t.value for t in recipe.consumes)
        written = (self.writers[v] for v in reads if v in self.writers)
        touched = (job for v in ends for job in self._touching(v))
        waits = self._wait((*self._named(step.after), *written, *touched))
        for name in ends:
            self._free(name)
        self.done.append(Statement(step, (*waits, *reads), ends, step.keep, waits))

    def _host_run(self, index: int, step: Run, recipe: Recipe) -> None:
        reads = tuple(self.names.on_host(v) for v in recipe.read_values)
        ends = tuple(self.names.on_host(t.value) for t in recipe.consumes)
        binds = tuple(self.names.on_host(v) for v in recipe.outputs if v in step.keep)
        earlier = (*self._named(step.after), *(self.writers[n] for n in reads if n in self.writers))
        earlier += tuple(job for name in ends for job in self._touching(name))
        heir = binds[0] if binds else reads[0]
        after, job = self._begin(index, recipe.engine, heir, earlier, reads)
        for name in ends:
            self._pass_on(name, heir)
        for name in binds:
            self._written(name, job)
        uses = tuple(dict.fromkeys((*after, *reads)))
        self.done.append(Statement(step, uses, ends, binds, (), tuple(n for n in after if n not in reads)))

    def _send(self, index: int, step: Send) -> None:
        value, name = step.value, self.names.on_host(step.value)
        replaced = self.graph.values[value].replaces
        old = None if replaced is None else self.names.on_host(replaced)
        if self.graph.values[value].memory != HOST:
            old = None
        earlier = (*self._named(step.after), *((self.writers[value],) if value in self.writers else ()))
        earlier += () if old is None else tuple(self._touching(old))
        after, job = self._begin(index, "to_host", name, earlier, (value,))
        ends: tuple[Name, ...] = ()
        if old is not None:
            self._pass_on(old, name)
            ends = (old,)
        self._written(name, job)
        after = tuple(n for n in after if n != old)
        self.done.append(Statement(step, (*after, value, *ends), ends, (name,), (), after))

    def _fetch(self, index: int, step: Fetch) -> None:
        value, source, name = step.value, self.names.on_host(step.value), self.names.fetch(step.value)
        earlier = (*self._named(step.after), *((self.writers[source],) if source in self.writers else ()))
        after, job = self._begin(index, "from_host", name, earlier, (source,))
        after = tuple(n for n in after if n != source)
        self._written(value, job)
        self.done.append(Statement(step, (*after, source), (), (value, name), (), after))

    # jobs

    def _begin(
        self, index: int, engine: str, name: Name, earlier: Iterable[_Job], touches: Iterable[Name]
    ) -> tuple[tuple[Name, ...], _Job]:
        """A new job; returns what it has to wait for by name as well."""
        before = self.last.get(engine)
        clock = _merged(self.known, {} if before is None else before.clock)
        after = _lacking(earlier, clock)
        for job in after:
            clock = _merged(clock, job.clock)
        place = 1 if before is None else before.place + 1
        clock[engine] = place
        job = self.jobs[index] = self.last[engine] = _Job(engine, place, name, clock)
        self.called.setdefault(name, []).append(job)
        for touched in touches:
            self.users.setdefault(touched, []).append(job)
        return tuple(dict.fromkeys(j.name for j in after)), job

    def _wait(self, earlier: Iterable[_Job]) -> tuple[Name, ...]:
        """Lets compute wait; returns for what, by name."""
        waits = _lacking(earlier, self.known)
        for job in waits:
            self.known = _merged(self.known, job.clock)
        return tuple(dict.fromkeys(job.name for job in waits))

    def _named(self, after: Iterable[int]) -> Iterable[_Job]:
        return [self.jobs[step] for step in after if step in self.jobs]

    def _touching(self, name: Name) -> list[_Job]:
        """The jobs that write or read the bytes behind a name."""
        writer = self.writers.get(name)
        return [*([] if writer is None else [writer]), *self.users.get(name, ())]

    def _written(self, name: Name, job: _Job) -> None:
        self.writers[name] = job

    def _free(self, name: Name) -> None:
        self.writers.pop(name, None)
        self.users.pop(name, None)

    def _pass_on(self, name: Name, heir: Name) -> None:
        """The bytes behind a name get another one: who asks for its jobs waits for those of the heir, which wait."""
        moved = self.called.pop(name, [])
        for job in moved:
            job.name = heir
        self.called.setdefault(heir, []).extend(moved)
        self._free(name)


def _merged(one: Clock, other: Clock) -> Clock:
    found = dict(one)
    for engine, place in other.items():
        found[engine] = max(place, found.get(engine, 0))
    return found


def _lacking(jobs: Iterable[_Job], known: Clock) -> list[_Job]:
    """Those that are not known to be done, without those that follow from others."""
    found: list[_Job] = []
    for job in sorted(jobs, key=lambda j: -len(j.clock)):
        if known.get(job.engine, 0) < job.place:
            found.append(job)
    latest: dict[str, _Job] = {}
    for job in found:
        if job.engine not in latest or latest[job.engine].place < job.place:
            latest[job.engine] = job
    return [j for j in latest.values() if all(j is o or o.clock.get(j.engine, 0) < j.place for o in latest.values())]


def _with_ends(statements: list[Statement], names: Names) -> list[Statement]:
    """Deletes the name of every prefetch with the last statement that mentions it; one without a mention gets none."""
    waited: set[Name] = set()
    found: list[Statement] = []
    for statement in reversed(statements):
        if isinstance(statement.step, Fetch):
            value, name = statement.binds
            named = name in waited
            waited.discard(name)
            statement = replace(statement, binds=(value, name) if named else (value,), is_named=named)
        fetches = [n for n in (*statement.waits, *statement.after) if n >= 2 * names.values and n not in waited]
        if fetches:
            waited.update(fetches)
            statement = replace(statement, ends=(*statement.ends, *fetches))
        found.append(statement)
    return found[::-1]


def hosted(graph: Graph, value: int) -> bool:
    """Whether the caller gives a value in host memory."""
    return graph.values[value].persistent and graph.values[value].memory == HOST
