"""A reference interpreter: carries a schedule out with real contents, on engines that keep no order but the edges'.

Written against the documentation of `lowtide.ir`, not against the simulator or the checker. A content is a term (a
nested tuple that says how it was computed), so equal contents mean equal bits. A storage is an object that is
overwritten by consumption and poisoned when it is freed. Carrying out has two phases, as on a device: *issue* binds
names to storages and counts bytes, in the order of the schedule; *execution* moves contents, in any order that the
engines' queues and the `after` edges allow. The caller chooses that order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule, Send

Content = object
POISON = ("poison",)
UNWRITTEN = ("unwritten",)
Choose = Callable[[list[str]], str]


class CannotExecute(Exception):
    """The schedule asks for something that is not there."""


@dataclass(eq=False)
class Storage:
    """Bytes with a content."""

    size_B: int
    content: Content = UNWRITTEN


@dataclass
class Result:
    """What a run leaves behind: what was handed over, the generator, the effects of opaque recipes."""

    handed_over: dict[int, Content] = field(default_factory=dict)
    generator: int = 0
    effects: list[Content] = field(default_factory=list)
    peak_B: int = 0


def evaluate(graph: Graph, recipe: Recipe, contents: dict[int, Content], draw: int | None) -> dict[int, Content]:
    """Computes the outputs of a recipe from what it reads; `draw` is the generator's state for a random one."""
    if recipe.op == "fused":
        known = dict(contents)
        for part in recipe.args:
            assert isinstance(part, int)
            known.update(evaluate(graph, graph.recipes[part], known, draw))
        return {v: known[v] for v in recipe.outputs if v in known}
    tensors = [v for v in recipe.outputs if not (recipe.effect is Effect.RANDOM and v == recipe.state)]
    read = tuple((contents[r.value], tuple(v.op for v in r.views)) for r in recipe.reads)
    if recipe.op == "pack":
        return {tensors[0]: ("packed", read[0][0])}
    if recipe.op == "unpack":
        packed = read[0][0]
        return {tensors[0]: packed[1] if isinstance(packed, tuple) and packed[0] == "packed" else POISON}
    return {v: (recipe.op, k, read, draw) for k, v in enumerate(tensors)}


def given(value: int) -> Content:
    """The content of a value that the caller gives."""
    return ("given", value)


def run_plainly(graph: Graph) -> Result:
    """Runs the program once, keeping everything: the truth to compare with."""
    result = Result()
    contents = {v.id: given(v.id) for v in graph.values if v.arrives is not None and not graph.producers[v.id]}
    for index in graph.program:
        recipe = graph.recipes[index]
        draw = result.generator if recipe.effect is Effect.RANDOM else None
        made = evaluate(graph, recipe, contents, draw)
        if recipe.effect is Effect.RANDOM:
            if recipe.state is not None:
                made[recipe.state] = result.generator
            result.generator += 1
        if recipe.effect is Effect.OPAQUE:
            result.effects.append(tuple(made.items()))
        contents.update(made)
    result.handed_over = {v.id: contents[v.id] for v in graph.values if v.leaves is not None}
    return result


@dataclass(eq=False)
class _Job:
    """A step on its queue."""

    index: int
    queue: str
    after: tuple[int, ...]
    act: Callable[[], None]


class Interpreter:
    """Carries out one schedule, once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.truth = run_plainly(graph)
        self.result = Result()
        self.memories: dict[str, dict[int, Storage]] = {DEVICE: {}}
        self.gone: set[int] = set()
        self.held: dict[int, Storage] = {}
        self.bases: dict[int, Storage] = {}
        self.jobs: list[_Job] = []
        self.segment = -1
        self.now_B = 0
        for value in graph.values:
            if value.persistent:
                self.memories[DEVICE][value.id] = self._allocate(value.size_B, given(value.id))
                self.bases[value.id] = self.memories[DEVICE][value.id]

    def run(self, schedule: Schedule, choose: Choose = min) -> Result:
        """Issues every step, then executes them in an order picked by `choose` among the queues that may go on.

        Raises:
            CannotExecute: if a step needs a value that is not there, not yet there, or overwritten.
        """
        for index, step in enumerate(schedule.steps):
            match step:
                case Run():
                    self._issue_run(index, step)
                case Drop():
                    storage = self._find(step.value, step.memory)
                    del self.memories[step.memory][step.value]
                    self._release(storage, step.memory)
                    self._job(index, "compute", (), lambda s=storage: self._spoil(s))
                case Send():
                    self._issue_copy(index, step, DEVICE, step.memory, f"to {step.memory}")
                case Fetch():
                    self._issue_copy(index, step, step.memory, DEVICE, f"from {step.memory}")
                case Boundary():
                    self._issue_return(index)
                    self.segment = step.segment
                    self._issue_arrivals(step.segment)
        self._issue_return(len(schedule.steps))
        self._execute(choose)
        self._look_again()
        return self.result

    def _look_again(self) -> None:
        """The caller looks once more at what it holds: it finds what it was given, or what took its place."""
        for value, storage in {**self.held, **self.bases}.items():
            expected = [self.result.handed_over[v] for v, s in self.held.items() if s is storage]
            expected += [given(value)] if self.graph.values[value].persistent else []
            limited = self.graph.values[value].readable_through is not None
            if storage.content not in expected and not limited:
                raise CannotExecute(f"the caller finds {storage.content} in value {value}")

    # bytes

    def _allocate(self, size_B: int, content: Content = UNWRITTEN) -> Storage:
        self.now_B += size_B
        self.result.peak_B = max(self.result.peak_B, self.now_B)
        return Storage(size_B, content)

    def _release(self, storage: Storage, memory: str = DEVICE) -> None:
        if memory == DEVICE:
            self.now_B -= storage.size_B

    # issue

    def _find(self, value: int, memory: str = DEVICE) -> Storage:
        storage = self.memories.get(memory, {}).get(value)
        if storage is None:
            raise CannotExecute(f"value {value} is not in {memory}")
        return storage

    def _job(self, index: int, queue: str, after: tuple[int, ...], act: Callable[[], None]) -> None:
        self.jobs.append(_Job(index, queue, after, act))

    def _issue_run(self, index: int, step: Run) -> None:
        recipe = self.graph.recipes[step.recipe]
        reads = {v: self._find(v) for v in recipe.read_values}
        taken = {t.value: self._find(t.value) for t in recipe.consumes}
        state_B = self.graph.values[recipe.state].size_B if recipe.state is not None else 0
        bases: dict[int, Storage] = {}
        scratch = None
        if recipe.effect is Effect.RANDOM and recipe.state in step.keep and recipe.state is not None:
            bases[recipe.state] = self._allocate(state_B)
        elif recipe.effect is Effect.PURE and recipe.state is not None:
            scratch = self._allocate(state_B)  # the generator's own state, saved
        workers = self._allocate(recipe.trace.workers_B)
        blocks: list[Storage] = []
        for event in recipe.trace.events:
            if event >= 0:
                blocks.append(self._allocate(event))
            else:
                self._release(blocks[-event - 1])
        for extra in (workers, scratch):
            if extra is not None:
                self._release(extra)
        heirs = {t.output: t.value for t in recipe.consumes}
        for position, value in enumerate(recipe.outputs):
            if value in bases or value == recipe.state:
                continue
            base = recipe.trace.outputs[position] if position < len(recipe.trace.outputs) else None
            bases[value] = taken[heirs[position]] if position in heirs else Storage(0) if base is None else blocks[base]
        for value in taken:
            del self.memories[DEVICE][value]
            if self.graph.values[value].arrives is not None:
                self.gone.add(value)
        for value, storage in bases.items():
            if value not in step.keep:
                self._release(storage)
            elif value in self.memories[DEVICE] or value in self.gone:
                raise CannotExecute(f"value {value} comes about twice, or again after the caller lost it")
            else:
                self.memories[DEVICE][value] = storage
        for takeover in recipe.consumes:
            if takeover.output is None:
                self._release(taken[takeover.value])
        self._job(index, recipe.engine, step.after, lambda: self._compute(recipe, reads, list(taken.values()), bases))

    def _issue_copy(self, index: int, step: Send | Fetch, source: str, target: str, queue: str) -> None:
        origin = self._find(step.value, source)
        if step.value in self.memories.get(target, {}):
            raise CannotExecute(f"value {step.value} is already in {target}")
        size_B = self.graph.values[step.value].size_B
        copy = self._allocate(size_B) if target == DEVICE else Storage(size_B)
        self.memories.setdefault(target, {})[step.value] = copy
        self._job(index, queue, step.after, lambda: self._write(step.value, copy, self._content(step.value, origin)))

    def _issue_return(self, index: int) -> None:
        for value in self.graph.values:
            if value.leaves != self.segment or self.segment < 0:
                continue
            storage = self._find(value.id)
            self._job(index, "compute", (), lambda v=value.id, s=storage: self._hand_over(v, s))
            if value.held:
                self.held[value.id] = storage
            elif not value.persistent:
                del self.memories[DEVICE][value.id]
                self._release(storage)
                self._job(index, "compute", (), lambda s=storage: self._spoil(s))
        for value in self.graph.values:
            if value.persistent and value.readable_through == self.segment and value.id in self.memories[DEVICE]:
                storage = self._find(value.id)  # the caller overwrites it now
                self._job(index, "compute", (), lambda s=storage: self._spoil(s))

    def _issue_arrivals(self, segment: int) -> None:
        for value in self.graph.values:
            if value.arrives == segment and value.id not in self.memories[DEVICE]:
                content = self.truth.handed_over.get(value.id, given(value.id))
                self.memories[DEVICE][value.id] = self._allocate(value.size_B, content)

    # execution

    def _execute(self, choose: Choose) -> None:
        queues: dict[str, list[_Job]] = {}
        left: dict[int, int] = {}
        for job in self.jobs:
            queues.setdefault(job.queue, []).append(job)
            left[job.index] = left.get(job.index, 0) + 1
        while queues:
            ready = [q for q, jobs in queues.items() if not any(left.get(a) for a in jobs[0].after)]
            if not ready:
                raise CannotExecute("steps wait for each other")
            queue = choose(ready)
            job = queues[queue].pop(0)
            job.act()
            left[job.index] -= 1
            if not queues[queue]:
                del queues[queue]

    def _content(self, value: int, storage: Storage) -> Content:
        if storage.content in (POISON, UNWRITTEN):
            raise CannotExecute(f"the bytes of value {value} are {storage.content[0]}")
        return storage.content

    def _write(self, value: int, storage: Storage, content: Content) -> None:
        if storage.content == POISON:
            raise CannotExecute(f"value {value} is written into freed bytes")
        storage.content = content

    def _spoil(self, storage: Storage) -> None:
        storage.content = POISON

    def _hand_over(self, value: int, storage: Storage) -> None:
        self.result.handed_over[value] = self._content(value, storage)

    def _compute(
        self, recipe: Recipe, reads: dict[int, Storage], taken: list[Storage], bases: dict[int, Storage]
    ) -> None:
        contents = {v: self._content(v, s) for v, s in reads.items()}
        draw: int | None = None
        if recipe.effect is Effect.RANDOM:
            draw = self.result.generator
            self.result.generator += 1
            if recipe.state in bases:
                bases[recipe.state].content = draw
        elif recipe.state is not None:
            saved = contents[recipe.state]
            assert isinstance(saved, int)
            draw = saved
        made = evaluate(self.graph, recipe, contents, draw)
        if recipe.effect is Effect.OPAQUE:
            self.result.effects.append(tuple(made.items()))
        for value, content in made.items():
            if not any(bases[value] is storage for storage in taken):
                self._write(value, bases[value], content)
        for storage in taken:
            storage.content = POISON
        for value, content in made.items():
            if any(bases[value] is storage for storage in taken):
                bases[value].content = content
