"""Writes what a context runs as an execution trace, storage by storage, in the format that DTR published.

Values are known here by numbers that are never used again. When exactly the engine learns that the program has released
a value differs from run to run: so releases are written in order of those numbers, and only between operators.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lowtide.errors import EagerError
from lowtide.ir import trace_lines as lines
from lowtide.ir.trace_lines import TraceWriter

Made = tuple[int, int]
"""A value and its bytes."""


class Recorder:
    """See the module. Nothing is written without a path.

    Arguments:
        path: of the trace; `.gz` is compressed.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = path
        self._writer: TraceWriter | None = None
        self._names: dict[int, str] = {}
        self._dead: set[int] = set()
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

    def leaf(self, value: int, size_B: int) -> None:
        """A value that nothing made."""
        if self._writer is not None:
            name = self._name(value)
            self._writer.write(lines.Constant(name), lines.Memory(name, size_B))

    def call(
        self, name: str, inputs: Sequence[int], made: Sequence[Made], consumes: Sequence[tuple[int, int]], cost_ns: int
    ) -> None:
        """An operator ran; what it wrote over keeps its name.

        Arguments:
            made: its outputs.
            consumes: pairs (index of an input, index of the output that is written over it).
        """
        if self._writer is None:
            return
        arguments = self._known(inputs)
        if consumes:
            self._writer.write(lines.Mutate(name, arguments, tuple(source for source, _ in consumes), cost_ns))
        for source, output in consumes:
            self._names[made[output][0]] = self._names.pop(inputs[source])
        fresh = [(value, size_B) for value, size_B in made if value not in self._names]
        if fresh:
            self._results(name, arguments, fresh, 0 if consumes else cost_ns)

    def wrote(self, name: str, inputs: Sequence[int], written: Sequence[int], cost_ns: int) -> None:
        """An operator wrote to leaves, which keep their names."""
        if self._writer is not None and written:
            places = tuple(index for index, value in enumerate(inputs) if value in written)
            self._writer.write(lines.Mutate(name, self._known(inputs), places, cost_ns))

    def kept(self, name: str, inputs: Sequence[int], made: Sequence[Made], cost_ns: int) -> None:
        """An operator made what is never recomputed."""
        if self._writer is not None and made:
            self._results(name, self._known(inputs), made, cost_ns)

    def died(self, value: int) -> None:
        """The program has released a value."""
        if self._writer is not None:
            self._dead.add(value)

    def settle(self) -> None:
        """Between two operators: what died so far is released."""
        if self._writer is not None and self._dead:
            for value in sorted(self._dead):
                if name := self._names.pop(value, ""):
                    self._writer.write(lines.Release(name))
            self._dead.clear()

    def end(self) -> None:
        """Ends the trace: the file is complete."""
        if self._writer is not None:
            self.settle()
            self._writer.close()
            self._writer, self._path = None, None

    def _results(self, name: str, arguments: tuple[str, ...], made: Sequence[Made], cost_ns: int) -> None:
        assert self._writer is not None
        results = tuple(self._name(value) for value, _ in made)
        self._writer.write(lines.Call(name, arguments, results, cost_ns))
        for result, (_, size_B) in zip(results, made, strict=True):
            self._writer.write(lines.Memory(result, size_B), lines.Alias(result, lines.FRESH))

    def _known(self, values: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._names.get(value) or self._name(value) for value in values)

    def _name(self, value: int) -> str:
        name = self._names[value] = f"x{self._next}"
        self._next += 1
        return name
