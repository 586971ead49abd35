"""`lowtide verify`: its exit codes, and steps that are taken by processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lowtide.cli import verify as verb
from lowtide.cli.main import app
from lowtide.results.verification import Taken, Task

SOURCE = """
import torch

def step():
    return torch.nn.Linear(4, 4), (torch.randn(3, 4),)

def other_inputs():
    return torch.nn.Linear(4, 4), (torch.randn(3, 4, generator=torch.Generator().manual_seed(torch.seed() % 2**40)),)

def no_module():
    return torch.sin, (torch.randn(3),)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Path) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(measured))
    Path("user_script.py").write_text(SOURCE, encoding="utf-8")
    return "user_script.py"


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["verify", *arguments])


def _in_this_process(monkeypatch: pytest.MonkeyPatch, spoil: str = "") -> None:
    """Takes steps here, which is quicker; the digests of planned ones may be spoilt."""

    def take(target: str, task: Task, planned: dict[str, Any], _: Path) -> Taken:
        taken = verb.take_here(target, task, planned)
        if task.kind != "plain" and spoil:
            for step in taken.after:
                step[spoil] += "0"
        return taken

    monkeypatch.setattr(verb, "take_in_process", take)


def test_steps_in_processes_of_their_own(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = Path("answer.json")
    with capfd.disabled():  # the processes write to the real streams
        taken = verb.take_in_process(f"{script}:step", Task("plain", 1), {}, answer)
        again = verb.take_in_process(f"{script}:step", Task("plain", 1), {}, answer)
    assert taken.after == again.after
    assert "gradient of weight" in taken.after[0]


def test_equal(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_this_process(monkeypatch)
    result = _run(f"{script}:step", "--budget", "100% of plain", "--work", "100")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Equal: 2 steps")
    result = _run(f"{script}:step", "--budget", "100% of plain", "--work", "100", "--steps", "1", "--json")
    found = json.loads(result.stdout)
    assert found["equal"]
    assert found["compared"]["gradient"] == 2


def test_different_bits_are_a_broken_promise(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_this_process(monkeypatch, spoil="gradient of weight")
    result = _run(f"{script}:step", "--budget", "100% of plain", "--work", "100")
    assert result.exit_code == 1, result.output
    assert "gradient of weight" in result.output


def test_what_cannot_be_verified_is_refused(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_this_process(monkeypatch)
    result = _run(f"{script}:other_inputs", "--budget", "1GiB")
    assert result.exit_code == 2
    assert "input [0][0]" in result.output
    assert " ".join(result.output.split()).count("seed whatever they are made of") == 1
    assert _run(f"{script}:no_module", "--budget", "1GiB").exit_code == 2
    assert _run(f"{script}:step", "--budget", "nonsense").exit_code == 2
