"""`lowtide plan`: what it asks of the user's function, and how it ends when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lowtide
from lowtide.cli.main import app
from lowtide.cli.target import load_target
from lowtide.errors import InfeasibleBudget
from lowtide.ir.plan import PlanRecord, Status
from lowtide.ir.text import load_plan, save_plan
from tests.report.plan_records import MiB, record

SOURCE = """
def model(x): return x
def good(): return model, (1, 2)
def named(): return model, (1,), {"scale": 3}
def nothing(): return None
def bare(): return model, 1
def crooked(): return model, (1,), 3
def not_a_model(): return 7, (1,)
def raises(): raise ZeroDivisionError("mine alone")
def interrupts(): raise KeyboardInterrupt
constant = 3
"""


class FakePlan:
    """What the CLI needs of a plan: its record, and how to write it."""

    def __init__(self, made: PlanRecord) -> None:
        self.record = made

    def save(self, path: Path) -> None:
        save_plan(self.record, path)

    def to_html(self, path: Path) -> None:
        path.write_text("<!doctype html>", encoding="utf-8")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / f"user_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces `lowtide.plan` by one that remembers how it was called."""
    seen: list[dict[str, Any]] = []

    def plan(model: object, **options: Any) -> FakePlan:
        seen.append({"model": model, **options})
        return FakePlan(record())

    monkeypatch.setattr(lowtide, "plan", plan, raising=False)
    return seen


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_it_plans_prints_and_saves(script: Path, calls: list[dict[str, Any]], tmp_path: Path) -> None:
    result = _run(
        f"{script.stem}:named", "--budget", "40MiB", "-o", "plan.json", "--html", "plan.html",
        "--machine", "h200", "--work", "500", "--time-limit", "2", "--seed", "7",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "replayed once" in result.output
    assert load_plan(tmp_path / "plan.json") == record()
    assert (tmp_path / "plan.html").exists()
    (call,) = calls
    assert (call["args"], call["kwargs"], call["budget"], call["machine"]) == ((1,), {"scale": 3}, "40MiB", "h200")
    assert (call["work"], call["time_limit_s"], call["seed"]) == (500, 2.0, 7)


def test_a_file_serves_as_well_as_a_module(script: Path, calls: list[dict[str, Any]]) -> None:
    assert _run(f"{script}:good", "--budget", "40MiB").exit_code == 0
    assert (calls[0]["args"], calls[0]["kwargs"]) == ((1, 2), {})


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module_here:f", "no module"),
        ("no.such.module:f", "no module"),
        ("missing.py:f", "no file"),
        ("{}:absent", "no function 'absent'"),
        ("{}:constant", "no function 'constant'"),
        ("{}", "cannot read"),
        ("{}:nothing", "returned None"),
        ("{}:bare", "arguments' place"),
        ("{}:crooked", "keyword arguments' place"),
        ("{}:not_a_model", "model's place"),
    ],
)
def test_a_wrong_target_is_explained(script: Path, target: str, words: str) -> None:
    result = _run(target.format(script.stem), "--budget", "40MiB")
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_the_users_exception_is_shown_with_the_users_frames_alone(script: Path) -> None:
    result = _run(f"{script.stem}:raises", "--budget", "40MiB")
    assert result.exit_code == 1
    assert "ZeroDivisionError: mine alone" in result.output
    assert script.name in result.output
    assert "lowtide/cli" not in result.output


def test_a_module_that_fails_to_import_is_the_users_exception_too(script: Path) -> None:
    script.write_text("import no_such_thing_at_all\n", encoding="utf-8")
    result = _run(f"{script.stem}:good", "--budget", "40MiB")
    assert result.exit_code == 1
    assert "no_such_thing_at_all" in result.output


def test_a_malformed_budget_is_refused_before_anything_is_imported(script: Path) -> None:
    result = _run(f"{script.stem}:raises", "--budget", "lots")
    assert result.exit_code == 2
    assert "cannot read the budget 'lots'" in result.output


def test_too_small_a_budget_tells_the_remedy(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object, **__: object) -> None:
        raise InfeasibleBudget("too small; use budget=33554432", budget_B=MiB, floor_B=31 * MiB, smallest_B=32 * MiB)

    monkeypatch.setattr(lowtide, "plan", plan, raising=False)
    result = _run(f"{script.stem}:good", "--budget", "1MiB")
    assert result.exit_code == 2
    first = [line.rstrip() for line in result.output.splitlines()[:4]]
    assert first == [
        "does not fit  a budget of 1.00 MiB; nothing has been changed",
        "floor         31.0 MiB: proved, no plan needs less",
        "smallest      32.0 MiB: a plan is known for that",
        "next          --budget 33554432, a smaller batch, or a shorter sequence",
    ]
    assert "use budget=33554432" in result.output
    assert "Traceback" not in result.output


def test_an_interrupt_ends_with_130(script: Path) -> None:
    assert _run(f"{script.stem}:interrupts", "--budget", "40MiB").exit_code == 130


def test_an_interrupted_search_saves_what_it_has(script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lowtide, "plan", lambda *_, **__: FakePlan(record(Status.INTERRUPTED)), raising=False)
    result = _run(f"{script.stem}:good", "--budget", "40MiB", "-o", "plan.json")
    assert result.exit_code == 130
    assert load_plan(tmp_path / "plan.json").outcome.status is Status.INTERRUPTED


def test_a_target_in_a_package_is_found(script: Path) -> None:
    package = script.parent / f"pack_{script.stem}"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "inner.py").write_text(SOURCE, encoding="utf-8")
    assert load_target(f"{package.name}.inner:good").args == (1, 2)
