"""Progress is told on a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide import progress

FIRST_CALL = """
import torch
from torch import nn
import lowtide
from lowtide import progress
progress._PATIENCE_s = progress._PAUSE_s = 0.0
model = nn.Sequential(*(layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.GELU())))
lowtide.plan(model, args=(torch.randn(256, 64),), budget="100% of plain")
"""


def first_call(stderr: Any, **environment: str) -> None:
    subprocess.run([sys.executable, "-c", FIRST_CALL], stderr=stderr, env=os.environ | environment, check=True)


def on_terminal(**environment: str) -> str:
    """What a terminal is sent on stderr."""
    ours, theirs = pty.openpty()
    try:
        first_call(theirs, **environment)
    finally:
        os.close(theirs)
    sent = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        sent += piece
    os.close(ours)
    return sent.decode()


def test_a_terminal_sees_what_is_done_and_a_clean_line_in_the_end() -> None:
    sent = on_terminal()
    for stage in ("lowtide: capturing a graph of ", "lowtide: measuring operator ", "lowtide: planning: "):
        assert stage in sent
    assert sent.endswith("\x1b[2K")


def test_a_pipe_sees_nothing() -> None:
    assert not sys.stderr.isatty()
    assert progress._default() is None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(progress, "_PATIENCE_s", 0.0)
    monkeypatch.setattr(progress, "_PAUSE_s", 0.0)
    return []


def test_whoever_wants_to_show_it_gets_every_stage_and_the_end(said: list[str]) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    with progress.shown_by(said.append):
        lowtide.plan(model, args=(torch.randn(128, 64),), budget="100% of plain")
    assert said[-1] == ""
    assert any(text.startswith("lowtide: measuring operator") for text in said)


def test_how_long_it_will_take_is_told_once_that_can_be_known(said: list[str]) -> None:
    with progress.shown_by(said.append), progress.told():
        progress.tell_part("measuring", 0.0, 1.0)
        progress.tell_part("measuring", 0.25, 10.0)
    assert said == ["lowtide: measuring", "lowtide: measuring, 30 s left", ""]


def test_what_is_quick_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "_PATIENCE_s", 1e9)
    with progress.shown_by(said.append), progress.told():
        progress.tell("measuring")
    assert said == []


@pytest.mark.breadth
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_shows_one_output_that_is_replaced_and_then_the_plan() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = nbformat.v4.new_code_cell(FIRST_CALL.replace("lowtide.plan(", "shown = lowtide.plan(") + "\nshown")
    book = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    line, result = (output for output in cell.outputs if output.output_type != "stream")
    assert line.data["text/html"] == ""  # replaced by nothing when it was done
    assert "fits" in result.data["text/html"]
    assert result.data["text/plain"].startswith("Plan(peak ")


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_PROGRESS", "0")
    assert progress._default() is None
