"""Execution traces of eager programs (`ir/trace_lines.py`), read as graphs. Torch-free.

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

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from lowtide.errors import IllegalPlan, PlanFileError
from lowtide.ir.call import Read
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, MiniTrace, Origin, Recipe, Role, Segment, Value
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
    following,
    read_trace,
)

_NANOSECOND_s = 1e-9


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

    def take(self, instruction: Instruction, line: int, lines: Iterator[tuple[int, Instruction]]) -> None:
        """Carries out one instruction, with the lines that say what its results are."""
        match instruction:
            case Annotate(annotation="BACKWARD") if len(self.segments) == 1:
                self.segments = [Segment("forward"), Segment("backward")]
            case Annotate():
                raise Damaged(f"the annotation {instruction.annotation!r} does not belong here")
            case Constant(name):
                size_B = following(lines, Memory, name).memory
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
                raise Damaged(f"{type(instruction).__name__.upper()} without the instruction that it belongs to")

    def call(self, call: Call, line: int, lines: Iterator[tuple[int, Instruction]]) -> None:
        """An operator; its results are fresh storages, or share an argument's."""
        arguments = [self.storage(name) for name in call.args]
        fresh: list[int] = []
        for name in call.result:
            size_B = following(lines, Memory, name).memory
            alias = following(lines, Alias, name).alias
            if alias == FRESH:
                fresh.append(self.value(name, size_B))
                self.bind(name, _Storage(fresh[-1]))
            elif 0 <= alias < len(arguments):
                self.bind(name, arguments[alias])
            else:
                raise Damaged(f"{name} is an alias of argument {alias} of {len(arguments)}")
        if fresh:
            self.recipe(call.name, [s.value for s in arguments], fresh, call.time, line)

    def mutate(self, mutation: Mutate, line: int) -> None:
        """An operator that writes into its arguments."""
        arguments = [self.storage(name) for name in mutation.args]
        if not mutation.mutate or max(mutation.mutate) >= len(arguments):
            raise Damaged(f"{mutation.name} changes arguments {mutation.mutate} of {len(arguments)}")
        reads = [s.value for s in arguments]
        changed = {id(arguments[i]): (arguments[i], mutation.args[i]) for i in mutation.mutate}
        made = [self.value(name, self.values[storage.value].size_B) for storage, name in changed.values()]
        for (storage, _), value in zip(changed.values(), made, strict=True):
            storage.value = value
        self.recipe(mutation.name, reads, made, mutation.time, line)

    def bind(self, name: str, storage: _Storage) -> None:
        if name in self.names:
            raise Damaged(f"{name} is there already")
        self.names[name] = storage

    def storage(self, name: str) -> _Storage:
        if name not in self.names:
            raise Damaged(f"{name} is not there: nothing since START has made it, or it is released")
        return self.names[name]

    def value(
        self, name: str, size_B: int, role: Role = Role.ACTIVATION, arrives: int | None = None, persistent: bool = False
    ) -> int:
        self.values.append(Value(len(self.values), name, size_B, role, arrives=arrives, persistent=persistent))
        return len(self.values) - 1

    def recipe(self, op: str, reads: Sequence[int], outputs: list[int], time_ns: int, line: int) -> None:
        sizes_B = [self.values[v].size_B for v in outputs]
        events = tuple(size_B for size_B in sizes_B if size_B)
        allocations = iter(range(len(events)))
        self.recipes.append(
            Recipe(
                id=len(self.recipes),
                op=op,
                outputs=tuple(outputs),
                reads=tuple(Read(v) for v in reads),
                segment=len(self.segments) - 1,
                time_s=time_ns * _NANOSECOND_s,
                trace=MiniTrace(
                    events, tuple(next(allocations) if size_B else None for size_B in sizes_B), measured=True
                ),
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
    trace = read_trace(path)
    reader = _Reader(trace.name)
    lines = iter(trace)
    line = 0
    try:
        for line, instruction in lines:
            reader.take(instruction, line, lines)
    except Damaged as error:
        raise trace.damaged(line, error) from error
    if not reader.recipes:
        raise PlanFileError(f"{trace.source} calls nothing after START. {REMEDY}")
    graph = reader.graph(trace.key)
    try:
        check_graph(graph)
    except IllegalPlan as error:
        raise PlanFileError(f"{trace.source} makes an inconsistent graph: {error}. {REMEDY}") from error
    return graph
