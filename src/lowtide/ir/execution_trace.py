"""Execution traces of eager programs, as published with Dynamic Tensor Rematerialization, read as graphs. Torch-free.

A trace is one JSON object per line: what was called on which tensors, for how many nanoseconds, with how many bytes of
results (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021). What precedes `START` is warm-up.

- A storage's content is a value. Names, copies and aliases of it share the storage; a call that only makes aliases
  moves no bytes and is left out.
- A mutation is an operator that reads the storage's content and produces it anew: from then on every name of the
  storage means the new content.
- Constants live for the whole step. A content that is named when the trace ends is held to the end; any other may go
  after its last use, which is never later than where the trace releases it.
- Every operator counts as pure, and its results as its only allocations: a trace says nothing else.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from lowtide.errors import IllegalPlan, PlanFileError
from lowtide.ir.call import Read
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, MiniTrace, Origin, Recipe, Role, Segment, Value
from lowtide.ir.whole_file import read_whole

_NANOSECOND_s = 1e-9
_FRESH = -1  # an alias of nothing
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Instruction(msgspec.Struct, frozen=True, tag_field="INSTRUCTION", tag=str.upper, rename="upper"):
    """One line. Numbers may be written as strings."""


class Annotate(_Instruction, frozen=True):
    annotation: str


class Constant(_Instruction, frozen=True):
    name: str


class Memory(_Instruction, frozen=True):
    name: str
    memory: _Count


class Alias(_Instruction, frozen=True):
    name: str
    alias: int


class Call(_Instruction, frozen=True):
    name: str
    args: tuple[str, ...]
    result: tuple[str, ...]
    time: _Count


class Mutate(_Instruction, frozen=True):
    name: str
    args: tuple[str, ...]
    mutate: tuple[_Count, ...]
    time: _Count


class Copy(_Instruction, frozen=True):
    src: str
    dst: str


class CopyFrom(_Instruction, frozen=True, tag="COPY_FROM"):
    src: str
    dst: str


class Release(_Instruction, frozen=True):
    name: str


_DECODER = msgspec.json.Decoder(
    Annotate | Constant | Memory | Alias | Call | Mutate | Copy | CopyFrom | Release, strict=False
)


T = TypeVar("T", Memory, Alias)


class _Damaged(Exception):
    """A line that cannot follow the ones before it."""


@dataclass(eq=False)
class _Storage:
    """Bytes that names share; `value` is what they hold now."""

    value: int


@dataclass(eq=False)
class _Reader:
    """The graph so far. Invariant: `names` has every name that is not released, with its storage."""

    file: str
    names: dict[str, _Storage] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=lambda: [Segment("step")])

    def take(self, instruction: _Instruction, line: int, lines: Iterator[tuple[int, _Instruction]]) -> None:
        """Carries out one instruction, with the lines that say what its results are."""
        match instruction:
            case Annotate(annotation="BACKWARD") if len(self.segments) == 1:
                self.segments = [Segment("forward"), Segment("backward")]
            case Annotate():
                raise _Damaged(f"the annotation {instruction.annotation!r} does not belong here")
            case Constant(name):
                size_B = _next(lines, Memory, name).memory
                self.bind(name, _Storage(self.value(name, size_B, role=Role.CONSTANT, arrives=0, persistent=True)))
            case Call():
                self.call(instruction, line, lines)
            case Mutate():
                self.mutate(instruction, line)
            case Copy(src, dst):
                self.bind(dst, self.storage(src))
            case CopyFrom(src, dst):
                self.storage(dst)
                self.names[dst] = self.storage(src)
            case Release(name):
                self.storage(name)
                del self.names[name]
            case _:
                raise _Damaged(f"{type(instruction).__name__.upper()} without the instruction that it belongs to")

    def call(self, call: Call, line: int, lines: Iterator[tuple[int, _Instruction]]) -> None:
        """An operator; its results are fresh storages, or share an argument's."""
        arguments = [self.storage(name) for name in call.args]
        fresh: list[int] = []
        for name in call.result:
            size_B = _next(lines, Memory, name).memory
            alias = _next(lines, Alias, name).alias
            if alias == _FRESH:
                fresh.append(self.value(name, size_B))
                self.bind(name, _Storage(fresh[-1]))
            elif 0 <= alias < len(arguments):
                self.bind(name, arguments[alias])
            else:
                raise _Damaged(f"{name} is an alias of argument {alias} of {len(arguments)}")
        if fresh:
            self.recipe(call.name, [s.value for s in arguments], fresh, call.time, line)

    def mutate(self, mutation: Mutate, line: int) -> None:
        """An operator that writes into its arguments."""
        arguments = [self.storage(name) for name in mutation.args]
        if not mutation.mutate or max(mutation.mutate) >= len(arguments):
            raise _Damaged(f"{mutation.name} changes arguments {mutation.mutate} of {len(arguments)}")
        reads = [s.value for s in arguments]
        changed = {id(arguments[i]): (arguments[i], mutation.args[i]) for i in mutation.mutate}
        made = [self.value(name, self.values[storage.value].size_B) for storage, name in changed.values()]
        for (storage, _), value in zip(changed.values(), made, strict=True):
            storage.value = value
        self.recipe(mutation.name, reads, made, mutation.time, line)

    def bind(self, name: str, storage: _Storage) -> None:
        if name in self.names:
            raise _Damaged(f"{name} is there already")
        self.names[name] = storage

    def storage(self, name: str) -> _Storage:
        if name not in self.names:
            raise _Damaged(f"{name} is not there: nothing since START has made it, or it is released")
        return self.names[name]

    def value(
        self, name: str, size_B: int, role: Role = Role.ACTIVATION, arrives: int | None = None, persistent: bool = False
    ) -> int:
        self.values.append(Value(len(self.values), name, size_B, role, arrives=arrives, persistent=persistent))
        return len(self.values) - 1

    def recipe(self, op: str, reads: Sequence[int], outputs: list[int], time_ns: int, line: int) -> None:
        sizes_B = [self.values[v].size_B for v in outputs]
        events = tuple(size_B for size_B in sizes_B if size_B)
        homes = iter(range(len(events)))
        self.recipes.append(
            Recipe(
                id=len(self.recipes),
                op=op,
                outputs=tuple(outputs),
                reads=tuple(Read(v) for v in reads),
                segment=len(self.segments) - 1,
                time_s=time_ns * _NANOSECOND_s,
                trace=MiniTrace(events, tuple(next(homes) if size_B else None for size_B in sizes_B), measured=True),
                origin=Origin(source=f"{self.file}:{line}"),
            )
        )

    def graph(self, key: str) -> Graph:
        """What was read, with what is named at the end held until then."""
        last = len(self.segments) - 1
        made_in = {v: r.segment for r in self.recipes for v in r.outputs}
        for value in {s.value for s in self.names.values()} & made_in.keys():
            role = Role.GRADIENT if made_in[value] == last else Role.OUTPUT
            self.values[value] = msgspec.structs.replace(self.values[value], role=role, leaves=last)
        program = tuple(range(len(self.recipes)))
        name = self.file.split(".")[0]
        return Graph(tuple(self.values), tuple(self.recipes), program, tuple(self.segments), name=name, key=key)


def load_trace(path: str | os.PathLike[str]) -> Graph:
    """Reads an execution trace, compressed if its name ends in `.gz`.

    Arguments:
        path: of JSON lines; `START` in one of them.

    Returns: a graph of two segments, forward and backward, where the trace says which is which, and else of one. An
        operator's place in the source is its line in the trace.

    Raises:
        PlanFileError: if there is no such file, or it is damaged or foreign; the text names the line.

    O(trace).
    """
    path = Path(path)
    source = f"trace {path}"
    data = read_whole(path, source, _REMEDY)
    reader = _Reader(path.name)
    lines = _instructions(data, source)
    if not any(isinstance(i, Annotate) and i.annotation == "START" for _, i in lines):
        raise PlanFileError(f"{source} has no START: it is no execution trace, or it ended in the warm-up. {_REMEDY}")
    line = 0
    try:
        for line, instruction in lines:
            reader.take(instruction, line, lines)
    except _Damaged as error:
        raise PlanFileError(f"{source} is damaged at line {line}: {error}. {_REMEDY}") from error
    if not reader.recipes:
        raise PlanFileError(f"{source} calls nothing after START. {_REMEDY}")
    graph = reader.graph(hashlib.sha256(data).hexdigest()[:16])
    try:
        check_graph(graph)
    except IllegalPlan as error:
        raise PlanFileError(f"{source} makes an inconsistent graph: {error}. {_REMEDY}") from error
    return graph


_REMEDY = "Record the trace again, or name another one."


def _instructions(data: bytes, source: str) -> Iterator[tuple[int, _Instruction]]:
    """Every line with its number, as it is asked for."""
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        try:
            yield number, _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PlanFileError(f"{source} is damaged at line {number}: {error}. {_REMEDY}") from error


def _next(lines: Iterator[tuple[int, _Instruction]], kind: type[T], name: str) -> T:
    """The line that has to follow."""
    _, instruction = next(lines, (0, None))
    if not isinstance(instruction, kind) or instruction.name != name:
        raise _Damaged(f"{kind.__name__.upper()} of {name} does not follow")
    return instruction
