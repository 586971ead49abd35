"""Versioned JSON of the vocabulary: graphs, schedules, layouts, problems, outcomes, plans, frontiers and machines.

A file is one object: `format`, `kind`, `version`, for plans a `digest` of the body, and the `body`. JSON has no
infinities; they are written as `{"$float": "inf"}`. A file whose name ends in `.gz` is compressed.
"""

from __future__ import annotations

import hashlib
import math
import numbers
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lowtide.errors import IllegalPlan, PlanFileError
from lowtide.ir.check import check
from lowtide.ir.check_claims import check_blocks, check_claims
from lowtide.ir.check_graph import check_graph
from lowtide.ir.frontier import FrontierRecord, disorder
from lowtide.ir.graph import Graph
from lowtide.ir.layout import Layout
from lowtide.ir.machine import Machine
from lowtide.ir.plan import Outcome, PlanRecord, Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.whole_file import read_whole, write_whole

FORMAT = "lowtide"
VERSION = 1
KINDS: dict[type, str] = {
    Graph: "graph",
    Schedule: "schedule",
    Layout: "layout",
    Problem: "problem",
    Outcome: "outcome",
    PlanRecord: "plan",
    FrontierRecord: "frontier",
    Machine: "machine",
}
_MARK = "$float"
_FLOATS = {str(number): number for number in (math.inf, -math.inf, math.nan)}
MOST_ELEMENTS = 16_000_000
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # what a constant of a program can be

T = TypeVar("T", Graph, Schedule, Layout, Problem, Outcome, PlanRecord, FrontierRecord, Machine)


class _Header(msgspec.Struct):
    format: str
    kind: str
    version: int
    body: Any
    digest: str | None = None


def dumps(value: Graph | Schedule | Layout | Problem | Outcome | PlanRecord | FrontierRecord | Machine) -> str:
    """Writes a value as one line of JSON with a header.

    Raises:
        PlanFileError: if it is none of the kinds, or holds something that has no text form.
    """
    kind = KINDS.get(type(value))
    if kind is None:
        raise PlanFileError(f"a {type(value).__name__} has no file format; writable are {', '.join(KINDS.values())}")
    try:
        body = _escape(msgspec.to_builtins(value, enc_hook=_plain_number))
        if isinstance(value, Outcome | PlanRecord):  # by name, so that its wording may change
            outcome = value if isinstance(value, Outcome) else value.outcome
            _outcome_of(body, kind)["status"] = outcome.status.name
    except (TypeError, ValueError) as error:
        raise PlanFileError(f"cannot write this {kind}: {error}") from error
    header = {"format": FORMAT, "kind": kind, "version": VERSION}
    if kind == "plan":
        header["digest"] = _digest(body)
    return msgspec.json.encode({**header, "body": body}).decode()


def loads(text: str | bytes, type: type[T], source: str = "this text") -> T:
    """Reads what `dumps` wrote.

    Arguments:
        text: JSON.
        type: which of the kinds is expected.
        source: how to name the text in errors, a file's path.

    Raises:
        PlanFileError: if the text is damaged, truncated, foreign, of another kind or of another version.
    """
    kind = KINDS[type]
    header = _header(text, kind, source)
    if header.digest is not None and header.digest != _digest(header.body, source, kind):
        raise PlanFileError(f"{source} is damaged: its content does not match its digest. {_remedy(kind)}")
    try:
        body = _unescape(header.body)
        if kind in ("outcome", "plan"):
            outcome = _outcome_of(body, kind)
            outcome["status"] = Status[outcome["status"]].value
        value = msgspec.convert(body, type)
    except (msgspec.ValidationError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PlanFileError(f"{source} is damaged: {error}. {_remedy(kind)}") from error
    if isinstance(value, PlanRecord | FrontierRecord) and value.version != VERSION:
        raise PlanFileError(_other_version(source, kind, value.version))
    return value


def save_plan(record: PlanRecord, path: str | os.PathLike[str]) -> None:
    """Writes a plan file; readers see the old file or the whole new one, never a part.

    Raises:
        PlanFileError: if the plan holds something that has no text form.
        OSError: if the folder cannot be written.
    """
    write_whole(Path(path), dumps(record))


def load_plan(path: str | os.PathLike[str]) -> PlanRecord:
    """Reads a plan file and checks that it is legal: its graph, its schedule within the peak it claims, its addresses.

    Raises:
        PlanFileError: if there is no such file, or it is damaged, foreign, of another version or illegal.
    """
    source = f"plan file {os.fspath(path)}"
    record = loads(read_whole(Path(path), source), PlanRecord, source)
    with _sound(f"{source} holds an illegal plan:", "plan"):
        check_claims(record)
        check(record.graph, record.schedule, record.peak_B - record.outside_B, record.layout)
        check_blocks(record)
    return record


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes a graph file; the same graph gives the same bytes, compressed or not.

    Raises:
        PlanFileError: if the graph holds something that has no text form.
        OSError: if the folder cannot be written.
    """
    write_whole(Path(path), dumps(graph))


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Reads a graph file and checks that the graph is consistent in itself.

    Raises:
        PlanFileError: if there is no such file, or it is damaged, foreign, of another version or inconsistent.
    """
    source = f"graph file {os.fspath(path)}"
    graph = loads(read_whole(Path(path), source), Graph, source)
    with _sound(f"{source} holds an inconsistent graph:", "graph"):
        check_graph(graph)
    return graph


def save_frontier(record: FrontierRecord, path: str | os.PathLike[str]) -> None:
    """Writes a frontier file, as a whole or not at all.

    Raises:
        OSError: if the folder cannot be written.
    """
    write_whole(Path(path), dumps(record))


def load_frontier(path: str | os.PathLike[str]) -> FrontierRecord:
    """Reads a frontier file and checks that its points are in order.

    Raises:
        PlanFileError: if there is no such file, or it is damaged, foreign or of another version.
    """
    source = f"frontier file {os.fspath(path)}"
    record = loads(read_whole(Path(path), source), FrontierRecord, source)
    if found := disorder(record):
        raise PlanFileError(f"{source} is damaged: {found}. {_remedy('frontier')}")
    return record


@contextmanager
def _sound(fault: str, kind: str) -> Iterator[None]:
    """Says of a broken rule in which file it was found, and what to do."""
    try:
        yield
    except IllegalPlan as error:
        raise PlanFileError(f"{fault} {error}. {_remedy(kind)}") from error


def _header(text: str | bytes, kind: str, source: str) -> _Header:
    """Reads and judges what stands around the body."""
    if _elements(text) > MOST_ELEMENTS:
        raise PlanFileError(f"{source} has more than {MOST_ELEMENTS:,} elements, which lowtide does not read")
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanFileError(f"{source} is truncated or damaged: {error}. {_remedy(kind)}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanFileError(f"{source} is not a lowtide file: it has no such header. Name a file that lowtide saved.")
    version = data.get("version")
    if isinstance(version, int) and version != VERSION:
        raise PlanFileError(_other_version(source, kind, version))
    if data.get("kind") != kind:
        raise PlanFileError(f"{source} holds {_held(data.get('kind'))}, not a {kind}. Name a {kind} file.")
    try:
        return msgspec.convert(data, _Header)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"{source} is damaged: {error}. {_remedy(kind)}") from error


def _elements(text: str | bytes) -> int:
    """At least as many as JSON has lists, objects and items; each takes some fifty bytes of memory once it is read."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return data.count(b"[") + data.count(b"{") + data.count(b",")


def _held(kind: object) -> str:
    """What a header says that its file holds, in words."""
    return f"a {kind!r}" if isinstance(kind, str) and kind in KINDS.values() else "something else"


def _other_version(source: str, kind: str, version: int) -> str:
    age, tool = ("newer", "a newer lowtide") if version > VERSION else ("older", "the lowtide that wrote it")
    return (
        f"{source} has format version {version}, which is {age} than this lowtide's {VERSION}. "
        f"Read it with {tool}, or make the {kind} again."
    )


def _remedy(kind: str) -> str:
    return "Make the plan again and save it." if kind == "plan" else f"Write the {kind} again."


def _digest(body: object, source: str = "this plan", kind: str = "plan") -> str:
    """Of the canonical text, so that pretty-printing a file does not damage it.

    Raises:
        PlanFileError: if the body has no text form.
    """
    try:
        return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanFileError(f"{source} is damaged: {error}. {_remedy(kind)}") from error


def _outcome_of(body: Any, kind: str) -> Any:
    return body if kind == "outcome" else body["outcome"]


def _plain_number(value: object) -> object:
    """Numbers of other libraries, in a planner's statistics."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"a {type(value).__name__} has no text form")


def _escape(tree: Any) -> Any:
    """Replaces the floats that JSON lacks; shares everything else with `tree`."""
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {_MARK: str(tree)}
    if isinstance(tree, dict):
        if _MARK in tree:
            raise ValueError(f"the key {_MARK!r} is reserved")
        return {key: _escape(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [_escape(item) for item in tree]
    return tree


def _unescape(tree: Any) -> Any:
    """The inverse of `_escape`.

    Raises:
        ValueError: if a number is none of a program.
    """
    if isinstance(tree, dict):
        if _MARK in tree:
            return _FLOATS[tree[_MARK]]
        return {key: _unescape(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_unescape(item) for item in tree]
    if isinstance(tree, int) and not _LEAST_INT <= tree <= _MOST_INT:
        raise ValueError("a number of more than 64 bits")
    return tree
