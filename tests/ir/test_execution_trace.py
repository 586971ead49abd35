"""Execution traces mean what the eager program did, and damaged ones say where."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from benchmarks.problem_set import TRACES
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import PlanFileError
from lowtide.ir.execution_trace import load_trace
from lowtide.ir.graph import Graph, Role
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from tests.ir.traces import Eager, network, random_program

START = '{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}\n'
CONSTANT = '{"INSTRUCTION": "CONSTANT", "NAME": "c"}\n{"INSTRUCTION": "MEMORY", "NAME": "c", "MEMORY": "8"}\n'
CALL = '{"INSTRUCTION": "CALL", "NAME": "f", "ARGS": ["c"], "RESULT": ["r"], "TIME": "5"}\n'
MEMORY = '{"INSTRUCTION": "MEMORY", "NAME": "r", "MEMORY": "8"}\n'
ALIAS = '{"INSTRUCTION": "ALIAS", "NAME": "r", "ALIAS": "-1"}\n'
BACKWARD = '{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}\n'


def _read(folder: Path, text: str, name: str = "net.jsonl") -> Graph:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return load_trace(path)


@pytest.mark.parametrize("name", ["net.jsonl", "net.jsonl.gz"])
def test_a_network_by_hand(tmp_path: Path, name: str) -> None:
    graph = _read(tmp_path, network().text, name)
    assert [s.name for s in graph.segments] == ["forward", "backward"]
    assert [(r.op, r.segment) for r in graph.recipes] == [
        ("matmul", 0), ("relu_", 0), ("sum", 0), ("ones_like", 1), ("backward", 1),
    ]  # fmt: skip
    assert [r.time_s for r in graph.recipes] == pytest.approx([3e-6, 2e-6, 1e-6, 5e-7, 4e-6])
    assert {v.name for v in graph.values if v.persistent} == {"w", "x"}
    assert {v.name: v.role for v in graph.values if v.leaves is not None} == {"grad": Role.GRADIENT}
    assert graph.recipes[0].origin.source == f"{name}:6"
    assert graph.name == "net"


def test_a_mutation_makes_a_new_content_that_every_name_means(tmp_path: Path) -> None:
    matmul, relu, total, _, backward = _read(tmp_path, network().text).recipes
    assert relu.read_values == matmul.outputs
    assert total.read_values == relu.outputs  # through a view made before
    assert relu.outputs[0] in backward.read_values
    assert matmul.outputs[0] not in backward.read_values


def test_a_content_that_keeps_a_name_is_held_whichever_segment_made_it(tmp_path: Path) -> None:
    eager = Eager()
    eager.constant("c", 8)
    eager.call("f", ["c"], [("a", 16)])
    eager.call("g", ["a"], [("b", 16)])
    eager.copy_from("b", "a")  # the first content has no name left
    eager.backward()
    eager.call("h", ["a"], [("d", 16)])
    graph = _read(tmp_path, eager.text)
    held = {graph.recipes[graph.producers[v.id][0]].op: v.role for v in graph.values if v.leaves is not None}
    assert held == {"g": Role.OUTPUT, "h": Role.GRADIENT}


def test_warm_up_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    warm = Eager()
    warm.constant("old", 8)
    text = "\n".join([*warm.lines[1:], "", network().text, ""])
    assert _read(tmp_path, text).recipes[0].op == "matmul"


def test_without_backward_there_is_one_segment(tmp_path: Path) -> None:
    graph = _read(tmp_path, network().text.replace(BACKWARD.strip(), ""))
    assert [s.name for s in graph.segments] == ["step"]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_keeping_everything_needs_no_more_than_the_eager_program(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Constants live throughout here, and there from where they are made: they are all made first."""
    eager = random_program(seed)
    graph = _read(tmp_path_factory.mktemp("trace"), eager.text)  # consistent, or it would be refused
    timeline = simulate(graph, keep_all_schedule(graph))
    constants_B = sum(v.size_B for v in graph.values if v.persistent)
    assert timeline.peak_B <= eager.peak_B + constants_B  # of which some were released early
    assert sum(r.time_s for r in graph.recipes) == pytest.approx(eager.time_ns * 1e-9)


DAMAGED = {
    "no start": (CONSTANT, "no START"),
    "nothing": ("", "no START"),
    "no call": (START + CONSTANT, "calls nothing"),
    "cut line": (START + CONSTANT + CALL[:30], "damaged at line 4"),
    "not an object": (START + "[1]", "damaged at line 2"),
    "unknown instruction": (START + '{"INSTRUCTION": "JUMP"}', "damaged at line 2"),
    "missing key": (START + '{"INSTRUCTION": "COPY", "SRC": "a"}', "damaged at line 2"),
    "negative bytes": (START + CONSTANT.replace('"8"', '"-8"'), "damaged at line 3"),
    "no bytes": (START + CONSTANT.splitlines()[0] + "\n" + CALL, "line 2: MEMORY of c does not follow"),
    "ends early": (START + CONSTANT + CALL + MEMORY, "line 4: ALIAS of r does not follow"),
    "unknown argument": (START + CALL + MEMORY + ALIAS, "line 2: c is not there"),
    "released": (START + '{"INSTRUCTION": "RELEASE", "NAME": "c"}', "line 2: c is not there"),
    "made twice": (START + CONSTANT + CONSTANT, "line 4: c is there already"),
    "alias of nothing": (
        START + CONSTANT + CALL + MEMORY + '{"INSTRUCTION": "ALIAS", "NAME": "r", "ALIAS": "1"}',
        "alias of argument 1 of 1",
    ),
    "changes nothing": (
        START + CONSTANT + '{"INSTRUCTION": "MUTATE", "NAME": "f_", "ARGS": ["c"], "MUTATE": [1], "TIME": "5"}',
        r"changes arguments \(1,\) of 1",
    ),
    "bytes of nothing": (START + MEMORY, "line 2: MEMORY without the instruction"),
    "backward twice": (START + BACKWARD + BACKWARD, "line 3: the annotation 'BACKWARD'"),
    "binary": ("\x00\xff", "damaged at line 1"),
}


@pytest.mark.parametrize("name", list(DAMAGED))
def test_damage_is_named_with_its_line_and_the_remedy(name: str, tmp_path: Path) -> None:
    text, words = DAMAGED[name]
    with pytest.raises(PlanFileError, match=words) as caught:
        _read(tmp_path, text)
    assert "net.jsonl" in str(caught.value)
    assert "Record the trace again, or name another one" in str(caught.value)


def test_truncated_archives_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.jsonl.gz"
    path.write_bytes(gzip.compress(network().text.encode())[:-20])
    with pytest.raises(PlanFileError, match="truncated or damaged"):
        load_trace(path)
    with pytest.raises(PlanFileError, match="cannot be read"):
        load_trace(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    ("name", "peak_B", "time_s"),
    [("unet", 8.416e9, 0.4353), ("resnet32", 10.061e9, 0.2919), ("densenet121", 11.021e9, 0.3553)],
)
def test_published_traces_take_what_was_reported(name: str, peak_B: float, time_s: float) -> None:
    """Peak and time that the simulator published with them reports for a run without a limit."""
    graph = load_trace(TRACES / f"{name}.jsonl.gz")
    timeline = simulate(graph, keep_all_schedule(graph))
    assert timeline.peak_B == pytest.approx(peak_B, rel=0.002)
    assert timeline.time_s == pytest.approx(time_s, rel=0.002)
