"""Graph files: equal graphs are equal files, and what is no graph says so."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from benchmarks import problem_set

from lowtide.errors import PlanFileError
from lowtide.ir.graph_file import is_graph_file, read_graph
from lowtide.ir.text import dumps, load_graph, save_graph
from tests.ir import examples
from tests.ir.traces import network

MOST_B = 20_000_000  # of all problems together


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_graph_comes_back_and_the_same_graph_is_the_same_file(name: str, tmp_path: Path) -> None:
    save_graph(examples.dropout(), tmp_path / name)
    first = (tmp_path / name).read_bytes()
    save_graph(examples.dropout(), tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert load_graph(tmp_path / name) == read_graph(tmp_path / name) == examples.dropout()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_compressed_file_says_nothing_of_when_and_where_it_was_written(tmp_path: Path) -> None:
    for name in ("one.json.gz", "other.json.gz"):
        save_graph(examples.chain(), tmp_path / name)
    data = (tmp_path / "one.json.gz").read_bytes()
    assert data == (tmp_path / "other.json.gz").read_bytes()
    assert data[4:8] == bytes(4)


def test_traces_and_graphs_are_told_apart_by_name(tmp_path: Path) -> None:
    assert [is_graph_file(n) for n in ("a.json", "a.json.gz", "b/a.jsonl", "a.jsonl.gz")] == [True] * 4
    assert not any(is_graph_file(n) for n in ("m:f", "m.py:f", "a.gz", "json"))
    (tmp_path / "a.jsonl").write_text(network().text)
    assert read_graph(tmp_path / "a.jsonl").name == "a"
    with pytest.raises(PlanFileError, match="ends in none of"):
        read_graph(tmp_path / "a.txt")


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    graph = examples.chain()
    looping = msgspec.structs.replace(graph, program=graph.program[::-1])
    bad = {
        "cut.json.gz": (gzip.compress(dumps(graph).encode())[:-9], "truncated or damaged"),
        "plain.json.gz": (dumps(graph).encode(), "truncated or damaged"),
        "schedule.json": (b'{"format": "lowtide", "kind": "schedule", "version": 1, "body": []}', "holds a 'schedule'"),
        "looping.json": (dumps(looping).encode(), "inconsistent graph: .*graph-program"),
    }
    for name, (data, words) in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PlanFileError, match=words) as caught:
            read_graph(tmp_path / name)
        assert name in str(caught.value)


@pytest.mark.parametrize("name", problem_set.captured())
def test_every_problem_loads_and_says_its_machine(name: str) -> None:
    graph = problem_set.load(name)
    assert graph.name.startswith(name)
    assert "a100 by roofline" in graph.name
    assert [s.name for s in graph.segments] == ["forward", "backward"]
    assert sum(r.time_s for r in graph.recipes) > 0.01


def test_problems_are_many_and_small() -> None:
    files = [p for p in problem_set.FOLDER.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < MOST_B
    assert len(problem_set.captured()) >= 17
    assert set(problem_set.captured()) < set(problem_set.names())
    manifest = problem_set.FOLDER.joinpath("README.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in manifest for name in problem_set.captured())
    with pytest.raises(KeyError, match="no problem 'nothing'"):
        problem_set.load("nothing")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no such folder to write to: .*nowhere'$"):
        save_graph(examples.chain(), tmp_path / "nowhere" / "net.json")
