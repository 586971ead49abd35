"""`lowtide frontier`: models and graph files, what is written where, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lowtide
from lowtide.cli.main import app
from lowtide.ir.frontier import disorder
from lowtide.ir.text import load_frontier, save_graph
from lowtide.planners.baselines import QUICK as METHODS
from tests.planners.tape import unet

SOURCE = """
import torch
from torch import nn

def step():
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))))
    return model, (torch.randn(256, 32),), {}, torch.optim.AdamW(model.parameters())
"""
QUICK = ("--points", "4", "--work", "300")


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["frontier", *arguments])


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json.gz"
    save_graph(unet(2), path)
    return path


def test_a_model_becomes_tables_files_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE, encoding="utf-8")
    result = _run("train.py:step", *QUICK, "--json", "f.json", "--html", "f.html", "--svg", "f.svg", "--no-baselines")
    assert result.exit_code == 0, result.output
    assert "of plain" in result.output
    assert "optimizer state" in result.output
    record = load_frontier("f.json")
    assert disorder(record) == ""
    assert len(record.points) >= 3
    assert record.baselines == ()
    assert record.environment.torch
    assert Path("f.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path("f.svg").read_text(encoding="utf-8").startswith("<svg ")


def test_a_graph_file_needs_no_torch(graph_file: Path) -> None:
    hidden = "import sys; sys.modules['torch'] = None"
    picture = graph_file.with_name("f.svg")
    arguments = ["frontier", str(graph_file), *QUICK, "--svg", str(picture)]
    code = f"{hidden}; from lowtide.cli.main import app; app({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "superneurons-cost" in done.stdout
    assert picture.exists()


def test_json_on_stdout_is_the_frontier_alone(graph_file: Path) -> None:
    result = _run(str(graph_file), *QUICK, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["kind"] == "frontier"
    assert data["body"]["points"][0]["overhead"] == 0.0
    assert len(data["body"]["baselines"]) == len(METHODS)


def test_an_interruption_shows_what_there_is(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = lowtide.frontier_file

    def interrupted(path: str, *, watch: Any, **options: Any) -> Any:
        def stop(pace: Any) -> None:
            if pace.number == 3:
                raise KeyboardInterrupt
            watch(pace)

        return real(path, watch=stop, **options)

    monkeypatch.setattr(lowtide, "frontier_file", interrupted, raising=False)
    saved = graph_file.with_name("f.json")
    result = _run(str(graph_file), *QUICK, "--json", str(saved))
    assert result.exit_code == 130
    assert load_frontier(saved).stopped == "interrupted"
    assert len(load_frontier(saved).points) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.json",), "cannot be read"),
        (("nowhere.json", "--machine", "h200"), "of no effect"),
        (("nowhere.json", "--points", "1"), "points"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
