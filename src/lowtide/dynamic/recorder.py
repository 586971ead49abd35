"""Writes what a context runs as an execution trace, storage by storage, in the format that DTR published.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lowtide.dynamic.ledger import Call, Value
from lowtide.errors import EagerError
from lowtide.ir import trace_lines as lines
from lowtide.ir.trace_lines import TraceWriter


class Recorder:
    """See the module. Nothing is written without a path.

    Arguments:
        path: of the trace; `.gz` is compressed.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = path
        self._writer: TraceWriter | None = None
        self._names: dict[int, str] = {}
        self._next = 1

    def begin(self) -> None:
        """Begins the trace, unless it has begun already.

        Raises:
            EagerError: if the file cannot be written.
        """
        if self._path is not None and self._writer is None:
            try:
                self._writer = TraceWriter(self._path)
            except OSError as error:
                raise EagerError(f"record={str(self._path)!r} cannot be written: {error.strerror}") from error
            self._writer.write(lines.Annotate("START"))

    def leaf(self, value: Value) -> None:
        """A value that nothing made."""
        if self._writer is not None:
            name = self._name(value)
            self._writer.write(lines.Constant(name), lines.Memory(name, value.size_B))

    def call(self, call: Call) -> None:
        """An operator ran; what it wrote over keeps its name."""
        if self._writer is None:
            return
        arguments = tuple(self._names.get(value.id) or self._name(value) for value in call.inputs)
        if call.consumes:
            self._writer.write(
                lines.Mutate(call.name, arguments, tuple(source for source, _ in call.consumes), call.cost_ns)
            )
        for source, output in call.consumes:
            self._names[call.outputs[output].id] = self._names.pop(call.inputs[source].id)
        fresh = [value for value in call.outputs if value.id not in self._names]
        if not fresh:
            return
        results = tuple(self._name(value) for value in fresh)
        cost_ns = 0 if call.consumes else call.cost_ns
        self._writer.write(lines.Call(call.name, arguments, results, cost_ns))
        for name, value in zip(results, fresh, strict=True):
            self._writer.write(lines.Memory(name, value.size_B), lines.Alias(name, lines.FRESH))

    def wrote(self, name: str, inputs: Sequence[Value], written: Sequence[Value], cost_ns: int) -> None:
        """An operator wrote to leaves, which keep their names."""
        if self._writer is not None and written:
            arguments = tuple(self._names.get(value.id) or self._name(value) for value in inputs)
            places = tuple(index for index, value in enumerate(inputs) if value in written)
            self._writer.write(lines.Mutate(name, arguments, places, cost_ns))

    def kept(self, name: str, inputs: Sequence[Value], made: Sequence[Value], cost_ns: int) -> None:
        """An operator made what is never made again."""
        if self._writer is None or not made:
            return
        arguments = tuple(self._names.get(value.id) or self._name(value) for value in inputs)
        results = tuple(self._name(value) for value in made)
        self._writer.write(lines.Call(name, arguments, results, cost_ns))
        for result, value in zip(results, made, strict=True):
            self._writer.write(lines.Memory(result, value.size_B), lines.Alias(result, lines.FRESH))

    def died(self, value: Value) -> None:
        """The program let go of a value."""
        if self._writer is not None and (name := self._names.pop(value.id, "")):
            self._writer.write(lines.Release(name))

    def end(self) -> None:
        """Ends the trace: the file is complete."""
        if self._writer is not None:
            self._writer.close()
            self._writer, self._path = None, None

    def _name(self, value: Value) -> str:
        name = self._names[value.id] = f"x{self._next}"
        self._next += 1
        return name
