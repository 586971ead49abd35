"""The script for the first minutes of a GPU, without one: its lines, and that no stage hides another's result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.gpu import first_light


def test_a_stage_that_fails_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = {
        "broken": (first_light.bits, ("no such network", True, []), 60.0),
        "link": (first_light.link, (), 60.0),
    }
    monkeypatch.setattr(first_light, "STAGES", stages)
    out = tmp_path / "lines.jsonl"
    assert first_light.main(["--device", "cpu", "--quick", "--out", str(out)]) == 1
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert capsys.readouterr().out == out.read_text()
    found = [(line["stage"], line.get("fact", "failure")) for line in lines]
    expected = [("broken", "failure"), ("broken", "ended"), ("link", "skipped"), ("link", "ended"), ("all", "done")]
    assert found == expected
    assert "no such network" in lines[0]["failure"] + lines[0]["said"]
    assert lines[-1]["red"] == 1


def test_what_comes_too_late_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert first_light.main(["--device", "cpu", "--seconds", "0", "--only", "link"]) == 1
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"stage": "link", "failure": "no time was left"}


def test_every_stage_says_what_it_is_for() -> None:
    assert all(function.__doc__ for function, _, _ in first_light.STAGES.values())
    assert sum(limit_s for _, _, limit_s in list(first_light.STAGES.values())[:6]) <= 900  # the first half of the time
