"""`lowtide cache`: what it shows, what it clears, and that neither harms a training that uses it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lowtide.cli.main import app
from lowtide.device.fingerprint import Fingerprint
from lowtide.plan_cache.store import Header, PlanCache
from lowtide.profile.cache import ProfileCache
from lowtide.profile.measurement import Measurement
from tests.report.plan_records import MiB, record

HERE = Fingerprint(
    torch="2.13", device="a processor", threads=2, capability="x", mkldnn=True, deterministic=False, dtype="float32"
)
DAY_s = 86400.0


def _header(key: str, shapes: str) -> Header:
    return Header(
        key=key, structure="feedfeedfeedfeed", size_B=1, name="tiny", shapes=shapes, budget_B=40 * MiB,
        environment="here", lowtide="1",
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two plans, one of them old, two measurements, and a compiled module."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LOWTIDE_SHIM_DIR", str(tmp_path / "shim"))
    monkeypatch.delenv("LOWTIDE_PLAN_CACHE", raising=False)
    plans = PlanCache()
    for key, shapes, age_d in (("a" * 16, "x float32[2, 3]", 40), ("b" * 16, "x float32[4, 3]", 0)):
        plans.put(_header(key, shapes), record())
        used_s = time.time() - age_d * DAY_s
        os.utime(tmp_path / "plans" / f"feedfeedfeedfeed-{key}.plan", (used_s, used_s))
    profiles = ProfileCache()
    for key in ("one", "two"):
        profiles.put(HERE, key, Measurement(0.1, (8, -1), ()))
    profiles.flush()
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "module.so").write_bytes(b"x" * 100)
    return tmp_path


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cache", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def _json(*arguments: str) -> Any:
    return json.loads(_run(*arguments, "--json"))


def test_it_shows_what_there_is(folder: Path) -> None:
    shown = _run()
    for text in (str(folder / "plans"), "tiny", "x float32[2, 3]", "40.0 MiB", "40 d ago", "a processor", "module.so"):
        assert text in shown, text
    found = _json()
    assert [e["shapes"] for e in found["plans"]["entries"]] == ["x float32[4, 3]", "x float32[2, 3]"]
    assert found["plans"]["limit_B"] == 2**30
    (measured,) = found["profiles"]["files"]
    assert (measured["entries"], measured["threads"]) == (2, 2)
    assert [m["size_B"] for m in found["shim"]["files"]] == [100]


def test_an_empty_cache_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("LOWTIDE_SHIM_DIR", str(tmp_path / "none" / "shim"))
    assert "0 in 0 B" in _run()
    assert "removed 0 plans" in _run("clear")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("folder")
def test_it_clears_all_or_the_named_part() -> None:
    assert "removed 2 plans" in _run("clear", "--plans")
    found = _json()
    assert not found["plans"]["entries"]
    assert found["profiles"]["files"]
    assert found["shim"]["files"]
    said = _json("clear")
    assert {part: row["removed"] for part, row in said.items()} == {"profiles": 1, "plans": 0, "shim": 1}
    found = _json()
    assert [found["profiles"]["files"], found["plans"]["entries"], found["shim"]["files"]] == [[], [], []]


@pytest.mark.usefixtures("folder")
def test_it_clears_what_is_old() -> None:
    assert {p: r["removed"] for p, r in _json("clear", "--older-than", "30d").items()} == {
        "profiles": 0, "plans": 1, "shim": 0,
    }  # fmt: skip
    assert [e["key"] for e in _json()["plans"]["entries"]] == ["b" * 16]
    result = CliRunner().invoke(app, ["cache", "clear", "--older-than", "soon"])
    assert result.exit_code == 2
    assert '"30d"' in result.output


def test_damaged_and_foreign_files_are_neither_shown_nor_block(folder: Path) -> None:
    (folder / "plans" / "feedfeedfeedfeed-cccccccccccccccc.plan").write_bytes(os.urandom(300))
    (folder / "plans" / "notes.txt").write_text("mine")
    (folder / "profiles" / "0123456789abcdef.profile").write_text("{")
    (folder / "profiles" / "mine.profile").write_text("{")
    found = _json()
    assert len(found["plans"]["entries"]) == 2
    assert len(found["profiles"]["files"]) == 1
    _run("clear")
    left = sorted(p.name for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")
    assert left == ["mine.profile", "notes.txt"]


@pytest.mark.usefixtures("folder")
def test_a_plan_that_is_cleared_while_in_use_is_planned_anew() -> None:
    plans, profiles = PlanCache(), ProfileCache()
    assert plans.get("feedfeedfeedfeed", "b" * 16) == record()
    assert profiles.get(HERE, "one") is not None
    _run("clear")
    assert plans.get("feedfeedfeedfeed", "b" * 16) is None
    assert profiles.get(HERE, "one") is not None  # what a process knows it keeps
    plans.put(_header("b" * 16, "x"), record())
    profiles.put(HERE, "three", Measurement(0.1, (8, -1), ()))
    profiles.flush()
    assert len(_json()["plans"]["entries"]) == 1
    assert _json()["profiles"]["files"][0]["entries"] == 1


@pytest.mark.usefixtures("folder")
def test_a_wrong_setting_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_PLAN_CACHE", "much")
    result = CliRunner().invoke(app, ["cache"])
    assert result.exit_code == 2
    assert "LOWTIDE_PLAN_CACHE" in result.output
    monkeypatch.setenv("LOWTIDE_PLAN_CACHE", "0")
    assert "turned off" in _run()
