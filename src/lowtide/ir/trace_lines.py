"""Execution traces of eager programs, line by line, as published with Dynamic Tensor Rematerialization. Torch-free.

A trace is one JSON object per line: what was called on which tensors, for how many nanoseconds, with how many bytes of
results (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021). What precedes `START` is warm-up. Every result
of a `CALL` is followed by its `MEMORY` and its `ALIAS`, and every `CONSTANT` by its `MEMORY`.

Units: `_B` bytes; times are nanoseconds.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec

from lowtide.errors import PlanFileError
from lowtide.ir.whole_file import read_whole

FRESH = -1  # an alias of nothing
REMEDY = "Record the trace again, or name another one."
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Instruction(msgspec.Struct, frozen=True, tag_field="INSTRUCTION", tag=str.upper, rename="upper"):
    """One line. Numbers may be written as strings."""


class Annotate(Instruction, frozen=True):
    """`START` or `BACKWARD`."""

    annotation: str


class Constant(Instruction, frozen=True):
    """A tensor that is there from the beginning."""

    name: str


class Memory(Instruction, frozen=True):
    """How many bytes a tensor's storage has."""

    name: str
    memory: _Count


class Alias(Instruction, frozen=True):
    """Which argument's storage a result shares, or `FRESH`."""

    name: str
    alias: int


class Call(Instruction, frozen=True):
    """An operator that makes its results."""

    name: str
    args: tuple[str, ...]
    result: tuple[str, ...]
    time: _Count


class Mutate(Instruction, frozen=True):
    """An operator that writes into arguments."""

    name: str
    args: tuple[str, ...]
    mutate: tuple[_Count, ...]
    time: _Count


class Copy(Instruction, frozen=True):
    """One more name."""

    src: str
    dst: str


class CopyFrom(Instruction, frozen=True, tag="COPY_FROM"):
    """Another meaning of a name."""

    src: str
    dst: str


class Release(Instruction, frozen=True):
    """One name less."""

    name: str


_DECODER = msgspec.json.Decoder(
    Annotate | Constant | Memory | Alias | Call | Mutate | Copy | CopyFrom | Release, strict=False
)
_T = TypeVar("_T", Memory, Alias)


class Damaged(Exception):
    """A line that cannot follow the ones before it."""


@dataclass(eq=False)
class TraceLines:
    """What follows `START` in a trace.

    Arguments:
        name: of its file.
        source: how to name it in errors.
        data: all of it.
    """

    name: str
    source: str
    data: bytes

    @property
    def key(self) -> str:
        """Of the content: equal traces have equal ones."""
        return hashlib.sha256(self.data).hexdigest()[:16]

    def __iter__(self) -> Iterator[tuple[int, Instruction]]:
        """Every instruction with the number of its line.

        Raises:
            PlanFileError: at a line that is none, or if there is no `START`.
        """
        started = False
        for number, text in enumerate(self.data.splitlines(), 1):
            if not text.strip():
                continue
            try:
                instruction = _DECODER.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self.damaged(number, error) from error
            if started:
                yield number, instruction
            started = started or (isinstance(instruction, Annotate) and instruction.annotation == "START")
        if not started:
            raise PlanFileError(
                f"{self.source} has no START: it is no execution trace, or it ended in the warm-up. {REMEDY}"
            )

    def damaged(self, line: int, why: object) -> PlanFileError:
        """The error that says so."""
        return PlanFileError(f"{self.source} is damaged at line {line}: {why}. {REMEDY}")


def read_trace(path: str | os.PathLike[str]) -> TraceLines:
    """Reads a trace, compressed if its name ends in `.gz`.

    Raises:
        PlanFileError: if it cannot be read or unpacked.
    """
    path = Path(path)
    source = f"trace {path}"
    return TraceLines(path.name, source, read_whole(path, source, REMEDY))


def following(lines: Iterator[tuple[int, Instruction]], kind: type[_T], name: str) -> _T:
    """The line that has to come next, about the tensor `name`.

    Raises:
        Damaged: if another one does.
    """
    _, instruction = next(lines, (0, None))
    if not isinstance(instruction, kind) or instruction.name != name:
        raise Damaged(f"{kind.__name__.upper()} of {name} does not follow")
    return instruction


class TraceWriter:
    """Writes a trace as it happens, compressed if its name ends in `.gz`; numbers as strings, as the published ones.

    Raises:
        OSError: if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path)
        self._file: IO[bytes] = path.open("wb")
        self._packed = gzip.GzipFile("", "wb", fileobj=self._file, mtime=0) if path.suffix == ".gz" else None

    def write(self, *instructions: Instruction) -> None:
        """Adds lines."""
        (self._packed or self._file).write(b"".join(map(encode, instructions)))

    def close(self) -> None:
        """Ends the file; a second time does nothing."""
        if self._packed is not None:
            self._packed.close()
        self._file.close()


def write_trace(path: str | os.PathLike[str], instructions: Iterable[Instruction]) -> None:
    """Writes a whole trace: see `TraceWriter`."""
    writer = TraceWriter(path)
    try:
        writer.write(*instructions)
    finally:
        writer.close()


def encode(instruction: Instruction) -> bytes:
    """An instruction as a line."""
    facts = {name: _published(fact) for name, fact in msgspec.to_builtins(instruction).items()}
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _published(fact: Any) -> Any:
    return str(fact) if isinstance(fact, int) else fact
