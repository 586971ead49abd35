"""Reads a recorded trace as a tape: its events with names resolved, for replays and for graphs. Torch-free.

Contents are numbered from 1 in the order in which they come; a view may have a number too. Two readings of one trace:

- *in place*, as lowtide's engine works: names, copies and aliases of a storage share it, and calls that only make
  aliases cost their time once. A mutation gives the storage a new content at the same bytes, which all its names mean.
- *copies*, as DTR's simulator works: an alias is a view, made by a call that is recomputed when it is needed again. A
  mutation is a pure operator with fresh results; only the names that it was called on mean them.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

import abc
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import msgspec

from lowtide.errors import PlanFileError
from lowtide.ir.check_graph import MOST_B
from lowtide.ir.trace_lines import (
    FRESH,
    REMEDY,
    Alias,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Damaged,
    Instruction,
    Memory,
    Mutate,
    Release,
    TraceLines,
    following,
    read_trace,
)

_MOST_NS = 10**17  # three years


class Leaf(msgspec.Struct, frozen=True, tag=True):
    """A content that no call makes."""

    size_B: int


class Ran(msgspec.Struct, frozen=True, tag=True):
    """A call.

    Arguments:
        inputs: numbers, in the order of its arguments.
        sizes_B: of its outputs, which get the next numbers.
        views: pairs (index of an output, number of what it is a view of).
        consumes: pairs (index of an input, index of the output that is written over it).
        temps_B: workspaces that it takes and gives back.
    """

    name: str
    inputs: tuple[int, ...]
    sizes_B: tuple[int, ...]
    cost_ns: int
    views: tuple[tuple[int, int], ...] = ()
    consumes: tuple[tuple[int, int], ...] = ()
    temps_B: tuple[int, ...] = ()


class Died(msgspec.Struct, frozen=True, tag=True):
    """No name means this content, or a view of it, any more."""

    number: int


Event = Leaf | Ran | Died


class Tape(msgspec.Struct, frozen=True):
    """A trace, read in one of the two modes.

    Arguments:
        kept: contents that are named at the end, in the order in which they are asked for then.
        time_ns: of all calls.
        peak_B: the most bytes that contents with names have at once, with what the call that runs makes.
        names: per content in the order of numbers, the name that it came with.
        lines: of the trace, per event.
        backward: how many events precede the backward, where the trace says when it begins.
    """

    name: str
    key: str
    in_place: bool
    events: tuple[Event, ...]
    kept: tuple[int, ...]
    time_ns: int
    peak_B: int
    names: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    backward: int | None = None


def load_tape(path: str | os.PathLike[str], *, in_place: bool = True) -> Tape:
    """Reads a trace as a tape.

    Arguments:
        path: of JSON lines; compressed if its name ends in `.gz`.
        in_place: see the module.

    Raises:
        PlanFileError: if there is no such file, or it is damaged or foreign; the text names the line.

    O(trace).
    """
    return read_tape(read_trace(path), in_place=in_place)


def read_tape(trace: TraceLines, *, in_place: bool = True) -> Tape:
    """The same of a trace in hand."""
    reader = (_InPlace if in_place else _Copies)()
    lines = iter(trace)
    line = 0
    try:
        for line, instruction in lines:
            reader.take(instruction, lines)
            reader.lines += [line] * (len(reader.events) - len(reader.lines))
    except Damaged as error:
        raise trace.damaged(line, error) from error
    if not reader.calls:
        raise PlanFileError(f"{trace.source} calls nothing after START. {REMEDY}")
    if reader.meter.peak_B > MOST_B or reader.meter.time_ns > _MOST_NS:
        raise PlanFileError(f"{trace.source} takes more bytes or more time than there is. {REMEDY}")
    return Tape(
        name=trace.name.split(".")[0],
        key=trace.key,
        in_place=in_place,
        events=tuple(reader.events),
        kept=reader.kept(),
        time_ns=reader.meter.time_ns,
        peak_B=reader.meter.peak_B,
        names=tuple(reader.names),
        lines=tuple(reader.lines),
        backward=reader.backward,
    )


@dataclass(eq=False)
class _Meter:
    """What the program takes without a budget."""

    sizes_B: dict[int, int] = field(default_factory=dict)
    live_B: int = 0
    peak_B: int = 0
    time_ns: int = 0

    def made(self, number: int, size_B: int) -> None:
        self.sizes_B[number] = size_B
        self.live_B += size_B
        self.peak_B = max(self.peak_B, self.live_B)

    def died(self, number: int) -> None:
        self.live_B -= self.sizes_B.pop(number)


class _AbstractReader(abc.ABC):
    """A tape so far. A *storage* is what names that mean the same bytes share."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lines: list[int] = []
        self.names: list[str] = []
        self.backward: int | None = None
        self.meter = _Meter()
        self.calls = 0

    @abc.abstractmethod
    def kept(self) -> tuple[int, ...]: ...
    @abc.abstractmethod
    def constant(self, name: str, size_B: int) -> None: ...
    @abc.abstractmethod
    def call(self, call: Call, results: Sequence[tuple[str, int, int]]) -> None: ...
    @abc.abstractmethod
    def mutate(self, mutation: Mutate) -> None: ...
    @abc.abstractmethod
    def copy(self, src: str, dst: str) -> None: ...
    @abc.abstractmethod
    def copy_from(self, src: str, dst: str) -> None: ...
    @abc.abstractmethod
    def release(self, name: str) -> None: ...

    def take(self, instruction: Instruction, lines: Iterator[tuple[int, Instruction]]) -> None:
        """Carries out one instruction, with the lines that say what its results are."""
        match instruction:
            case Annotate(annotation="BACKWARD") if self.backward is None:
                self.backward = len(self.events)
            case Annotate():
                raise Damaged(f"the annotation {instruction.annotation!r} does not belong here")
            case Constant(name):
                self.constant(name, following(lines, Memory, name).memory)
            case Call():
                results = []
                for name in instruction.result:
                    size_B = following(lines, Memory, name).memory
                    alias = following(lines, Alias, name).alias
                    if not FRESH <= alias < len(instruction.args):
                        raise Damaged(f"{name} is an alias of argument {alias} of {len(instruction.args)}")
                    results.append((name, size_B, alias))
                self.calls += 1
                self.meter.time_ns += instruction.time
                self.call(instruction, results)
            case Mutate():
                if not instruction.mutate or max(instruction.mutate) >= len(instruction.args):
                    raise Damaged(
                        f"{instruction.name} changes arguments {instruction.mutate} of {len(instruction.args)}"
                    )
                self.calls += 1
                self.meter.time_ns += instruction.time
                self.mutate(instruction)
            case Copy(src, dst):
                self.copy(src, dst)
            case CopyFrom(src, dst):
                self.copy_from(src, dst)
            case Release(name):
                self.release(name)
            case _:
                raise Damaged(f"{type(instruction).__name__.upper()} without the instruction that it belongs to")

    def number(self, name: str) -> int:
        """The next one, for a content that comes with a name."""
        self.names.append(name)
        return len(self.names)

    def died(self, number: int) -> None:
        self.meter.died(number)
        self.events.append(Died(number))


@dataclass(eq=False)
class _Storage:
    """Bytes that names share; `number` is what they hold now."""

    number: int
    names: int = 0


@final
class _InPlace(_AbstractReader):
    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[str, _Storage] = {}

    def kept(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(storage.number for storage in self._storages.values()))

    def constant(self, name: str, size_B: int) -> None:
        self._bind(name, self._fresh(name, size_B))
        self.events.append(Leaf(size_B))

    def call(self, call: Call, results: Sequence[tuple[str, int, int]]) -> None:
        arguments = [self._storage(name) for name in call.args]
        inputs = tuple(dict.fromkeys(storage.number for storage in arguments))
        sizes_B = []
        for name, size_B, alias in results:
            if alias == FRESH:
                sizes_B.append(size_B)
            self._bind(name, self._fresh(name, size_B) if alias == FRESH else arguments[alias])
        self.events.append(Ran(call.name, inputs if sizes_B else (), tuple(sizes_B), call.time))

    def mutate(self, mutation: Mutate) -> None:
        arguments = [self._storage(name) for name in mutation.args]
        inputs = tuple(dict.fromkeys(storage.number for storage in arguments))
        changed = {arguments[i]: mutation.args[i] for i in mutation.mutate}
        consumes = tuple((inputs.index(storage.number), i) for i, storage in enumerate(changed))
        sizes_B = tuple(self.meter.sizes_B[storage.number] for storage in changed)
        for (storage, name), size_B in zip(changed.items(), sizes_B, strict=True):
            self.meter.died(storage.number)
            storage.number = self.number(name)
            self.meter.made(storage.number, size_B)
        self.events.append(Ran(mutation.name, inputs, sizes_B, mutation.time, consumes=consumes))

    def copy(self, src: str, dst: str) -> None:
        self._bind(dst, self._storage(src))

    def copy_from(self, src: str, dst: str) -> None:
        storage = self._storage(src)
        storage.names += 1
        self.release(dst)
        self._storages[dst] = storage

    def release(self, name: str) -> None:
        storage = self._storage(name)
        del self._storages[name]
        storage.names -= 1
        if not storage.names:
            self.died(storage.number)

    def _fresh(self, name: str, size_B: int) -> _Storage:
        storage = _Storage(self.number(name))
        self.meter.made(storage.number, size_B)
        return storage

    def _bind(self, name: str, storage: _Storage) -> None:
        if name in self._storages:
            raise Damaged(f"{name} is there already")
        self._storages[name] = storage
        storage.names += 1

    def _storage(self, name: str) -> _Storage:
        if name not in self._storages:
            raise Damaged(f"{name} is not there: nothing since START has made it, or it is released")
        return self._storages[name]


@final
class _Copies(_AbstractReader):
    """Names are known after their release, as in DTR's simulator: what is asked for at the end is every tensor that
    some name still counts, in the order in which their names were first seen."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: dict[str, int] = {}
        self._released: set[str] = set()
        self._roots: dict[int, int] = {}
        self._tensor_names: Counter[int] = Counter()
        self._root_names: Counter[int] = Counter()

    def kept(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number for number in self._tensors.values() if self._tensor_names[number]))

    def constant(self, name: str, size_B: int) -> None:
        self._name(name, self._fresh(name, size_B))
        self.events.append(Leaf(size_B))

    def call(self, call: Call, results: Sequence[tuple[str, int, int]]) -> None:
        inputs = tuple(self._tensor(name) for name in call.args)
        sizes_B, views = [], []
        for i, (name, size_B, alias) in enumerate(results):
            if alias == FRESH:
                number = self._fresh(name, size_B)
            else:
                number = self.number(name)
                self._roots[number] = self._roots[inputs[alias]]
                views.append((i, self._roots[number]))
            sizes_B.append(size_B if alias == FRESH else 0)
            self._name(name, number)
        self.events.append(Ran(call.name, inputs, tuple(sizes_B), call.time, views=tuple(views)))

    def mutate(self, mutation: Mutate) -> None:
        inputs = tuple(self._tensor(name) for name in mutation.args)
        sizes_B = tuple(self.meter.sizes_B[self._roots[inputs[i]]] for i in mutation.mutate)
        made = [self._fresh(mutation.args[i], size_B) for i, size_B in zip(mutation.mutate, sizes_B, strict=True)]
        self.events.append(Ran(mutation.name, inputs, sizes_B, mutation.time))
        for i, number in zip(mutation.mutate, made, strict=True):
            old = self._tensors[mutation.args[i]]
            self._tensors[mutation.args[i]] = number
            self._count(number)
            self._discount(old)

    def copy(self, src: str, dst: str) -> None:
        self._name(dst, self._tensor(src))

    def copy_from(self, src: str, dst: str) -> None:
        old, new = self._tensor(dst), self._tensor(src)
        self._tensors[dst] = new
        self._count(new)
        self._discount(old)

    def release(self, name: str) -> None:
        self._discount(self._tensor(name))
        self._released.add(name)

    def _fresh(self, name: str, size_B: int) -> int:
        number = self.number(name)
        self._roots[number] = number
        self.meter.made(number, size_B)
        return number

    def _name(self, name: str, number: int) -> None:
        if name in self._tensors and name not in self._released:
            raise Damaged(f"{name} is there already")
        self._released.discard(name)
        self._tensors.pop(name, None)
        self._tensors[name] = number
        self._count(number)

    def _count(self, number: int) -> None:
        self._tensor_names[number] += 1
        self._root_names[self._roots[number]] += 1

    def _discount(self, number: int) -> None:
        root = self._roots[number]
        self._tensor_names[number] -= 1
        self._root_names[root] -= 1
        if not self._root_names[root]:
            self.died(root)

    def _tensor(self, name: str) -> int:
        if name not in self._tensors or name in self._released:
            raise Damaged(f"{name} is not there: nothing since START has made it, or it is released")
        return self._tensors[name]
