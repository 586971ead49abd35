"""Trace lines are read and written as the published ones are."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest
from benchmarks.problem_set import TRACES

from lowtide.ir.trace_lines import (
    Alias,
    Annotate,
    Call,
    CopyFrom,
    Damaged,
    Memory,
    Mutate,
    TraceWriter,
    following,
    read_trace,
    write_trace,
)

START = Annotate("START")


@pytest.mark.parametrize("trace", sorted(TRACES.glob("*.gz")), ids=lambda p: p.name.split(".")[0])
def test_what_is_read_is_written_byte_for_byte(trace: Path, tmp_path: Path) -> None:
    lines = read_trace(trace)
    copy = tmp_path / "copy.jsonl.gz"
    write_trace(copy, [START, *(instruction for _, instruction in lines)])
    assert gzip.decompress(copy.read_bytes()) == lines.data
    assert read_trace(copy).key == lines.key


@pytest.mark.parametrize("name", ["net.jsonl", "net.jsonl.gz"])
def test_a_trace_is_written_as_it_happens(name: str, tmp_path: Path) -> None:
    written = [Call("f", ("a",), ("b",), 5), Memory("b", 8), Alias("b", -1), Mutate("g_", ("b",), (0,), 7)]
    writer = TraceWriter(tmp_path / name)
    writer.write(START)
    for instruction in written:
        writer.write(instruction)
    writer.close()
    writer.close()
    lines = read_trace(tmp_path / name)
    assert [instruction for _, instruction in lines] == written
    assert lines.data.splitlines()[4] == b'{"ARGS":["b"],"INSTRUCTION":"MUTATE","MUTATE":[0],"NAME":"g_","TIME":"7"}'


def test_equal_traces_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_trace(tmp_path / name, [START, CopyFrom("a", "b")])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_what_has_to_follow_is_asked_for_by_name() -> None:
    lines = enumerate([Memory("a", 1), Memory("b", 2)])
    assert following(lines, Memory, "a").memory == 1
    with pytest.raises(Damaged, match="MEMORY of c does not follow"):
        following(lines, Memory, "c")
    with pytest.raises(Damaged, match="ALIAS of a does not follow"):
        following(iter(()), Alias, "a")
    assert list(itertools.islice(lines, 1)) == []
