"""`lowtide explain`: reads a file without torch, and refuses what is not a plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowtide.cli.main import app


def test_it_prints_the_plan(plan_file: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(plan_file)])
    assert result.exit_code == 0
    for fact in ("40.0 MiB (accounted)", "replayed once", "model.py:11", "7 of 7 values"):
        assert fact in result.output


def test_what_is_proved_comes_with_verbose(plan_file: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(plan_file), "--verbose"])
    assert "proved floor" in result.output
    assert "2 ms to redo" in result.output


def test_top_and_html_and_svg(plan_file: Path) -> None:
    page, picture = plan_file.with_suffix(".html"), plan_file.with_suffix(".svg")
    result = CliRunner().invoke(
        app, ["explain", str(plan_file), "--top", "2", "--html", str(page), "--svg", str(picture)]
    )
    assert result.exit_code == 0
    assert "2 of 7 values" in result.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


def test_it_runs_where_torch_cannot_be_imported(plan_file: Path) -> None:
    hidden = "import sys; sys.modules['torch'] = None"
    code = f"{hidden}; from lowtide.cli.main import app; app(['explain', {str(plan_file)!r}])"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "replayed once" in done.stdout


@pytest.mark.parametrize("damage", ["truncated", "foreign", "edited", "older", "binary", "absent"])
def test_a_file_that_is_no_plan_is_refused_plainly(plan_file: Path, damage: str) -> None:
    text = plan_file.read_text(encoding="utf-8")
    if damage == "truncated":
        plan_file.write_text(text[: len(text) // 2], encoding="utf-8")
    elif damage == "foreign":
        plan_file.write_text('{"weights": [1, 2, 3]}', encoding="utf-8")
    elif damage == "edited":
        plan_file.write_text(text.replace('"budget_B":41943040', '"budget_B":41943041'), encoding="utf-8")
    elif damage == "older":
        plan_file.write_text(json.dumps({**json.loads(text), "version": 0}), encoding="utf-8")
    elif damage == "binary":
        plan_file.write_bytes(bytes(range(256)))
    else:
        plan_file.unlink()
    result = CliRunner().invoke(app, ["explain", str(plan_file)])
    assert result.exit_code == 2
    assert "PlanFileError" in result.output
    assert str(plan_file) in result.output
    assert "Traceback" not in result.output


def test_a_report_that_cannot_be_written_names_the_file(plan_file: Path) -> None:
    target = plan_file.parent / "no" / "such" / "folder.html"
    result = CliRunner().invoke(app, ["explain", str(plan_file), "--html", str(target)])
    assert result.exit_code == 2
    assert str(target) in result.output
