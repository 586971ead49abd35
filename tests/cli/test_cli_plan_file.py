"""`lowtide plan FILE`: graphs and traces without torch, and options that mean nothing for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lowtide
from lowtide.cli.main import app
from lowtide.cli.progress import line
from lowtide.ir.likeness import renumbered
from lowtide.ir.text import load_graph, load_plan, save_graph
from lowtide.planners.base import Progress
from tests.ir import examples
from tests.ir.traces import network
from tests.planners import tape

HIDDEN = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("torch is hidden", name="torch")

sys.meta_path.insert(0, Hidden())
from lowtide.cli.main import app
app()
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "net.jsonl"
    path.write_text(network().text)
    return path


def _run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_a_trace_is_planned_saved_and_explained_without_torch(trace: Path, tmp_path: Path) -> None:
    source = str(Path(lowtide.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    command = [
        "plan", trace, "--budget", "100% of plain", "-o", tmp_path / "plan.json", "--html", tmp_path / "plan.html",
        "--save-graph", tmp_path / "net.json.gz", "--work", "1000",
    ]  # fmt: skip
    for arguments in (command, ["explain", tmp_path / "plan.json"]):
        done = subprocess.run(
            [sys.executable, "-c", HIDDEN, *map(str, arguments)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "peak" in done.stdout
        assert "overhead" in done.stdout
    assert load_plan(tmp_path / "plan.json").graph == load_graph(tmp_path / "net.json.gz")
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")


def test_a_graph_is_planned_with_the_options_that_mean_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    inner = lowtide.plan_file

    def plan_file(path: str, **options: Any) -> lowtide.Plan:
        seen.append(options)
        return inner(path, **options)

    monkeypatch.setattr(lowtide, "plan_file", plan_file, raising=False)
    path = tmp_path / "chain.json"
    save_graph(examples.chain(), path)
    result = _run(path, "--budget", "100% of plain", "--work", "500", "--time-limit", "2", "--seed", "7", "--top", "0")
    assert result.exit_code == 0, result.output
    assert {k: v for k, v in seen[0].items() if k != "watch"} == {
        "budget": "100% of plain", "work": 500, "time_limit_s": 2.0, "seed": 7, "numerics": "exact",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--machine", "h200"], "--machine: of no effect"),
        (["--max-batch"], "--max-batch"),
        (["--vary", "x:0"], "--vary: of no effect"),
        (["--save-graph", "graph.txt"], "--save-graph: name a file that ends in"),
        (["--budget", "60%"], "no device to take a share of"),
        (["--budget", "1"], "Proved floor"),
    ],
)
def test_what_means_nothing_for_a_file_is_refused(trace: Path, options: list[str], words: str) -> None:
    result = _run(trace, *(["--budget", "40MiB"] if "--budget" not in options else []), *options)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_damaged_and_missing_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}")
    for name, words in (("bad.jsonl", "damaged at line 1"), ("none.json.gz", "cannot be read")):
        result = _run(tmp_path / name, "--budget", "40MiB")
        assert result.exit_code == 2
        assert words in " ".join(result.output.split())


def test_progress_tells_what_plan_and_bound_cost() -> None:
    assert line(Progress("floor", 0.12, None, 2.0, 0, 2.0)) == "planning: floor, 0.1 s, no plan yet, bound 0.0 %"
    told = line(Progress("annealing", 3.0, 2.5, 2.2, 9, 2.0))
    assert told == "planning: annealing, 3.0 s, overhead 25.0 %, bound 10.0 %, gap 13.6 %"
    assert line(Progress("start", 1.0, None, 0.0, 0)) == "planning: start, 1.0 s"


def test_a_file_is_planned_with_host_memory(tmp_path: Path) -> None:
    path, saved = tmp_path / "net.json", tmp_path / "plan.json"
    save_graph(tape.gpt(3), path)
    offload = ["--budget", "60% of plain", "--work", "100", "--host-budget", "64GiB"]
    result = _run(path, *offload, "--link", "25 GB/s", "--machine", "h100", "-o", saved)
    assert result.exit_code == 0, result.output
    record = load_plan(saved)
    assert (record.host_budget_B, record.link_Bps) == (2**36, 25e9)
    assert [link.rate_Bps for link in record.links] == [25e9, 25e9]
    assert ("copies to the host" in result.output) == (record.sent_B > 0)
    refusals = {
        "says nothing about a link": offload,
        "cannot read the rate": [*offload, "--link", "fast"],
        "say with host_budget=": ["--budget", "60% of plain", "--link", "25 GB/s"],
        "--machine: of no effect": ["--budget", "60% of plain", "--machine", "h100"],
    }
    for words, options in refusals.items():
        result = _run(path, *options)
        assert result.exit_code == 2, result.output
        assert words in " ".join(result.output.replace("│", " ").split())


def test_a_layer_of_a_file_is_repeated(tmp_path: Path) -> None:
    path, deep = tmp_path / "net.json.gz", tmp_path / "deep.json.gz"
    save_graph(tape.gpt(3), path)
    result = _run(path, "--budget", "60% of plain", "--work", "100", "--repeat", "layer=9", "--save-graph", deep)
    assert result.exit_code == 0, result.output
    assert renumbered(load_graph(deep)) == renumbered(tape.gpt(9))


@pytest.mark.parametrize(
    ("target", "option", "words"),
    [
        ("net.json", "layer", "write LAYER=TIMES"),
        ("net.json", "layer=0", "write LAYER=TIMES"),
        ("net.json", "h=4", "no block 'h'; layers that it repeats: 'layer' (3 in a row)"),
        ("model.py:make", "layer=4", "of a graph in a file; write one with --save-graph"),
    ],
)
def test_a_layer_that_cannot_be_repeated_is_refused(tmp_path: Path, target: str, option: str, words: str) -> None:
    save_graph(tape.gpt(3), tmp_path / "net.json")
    result = _run(tmp_path / target, "--budget", "60% of plain", "--repeat", option)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())
