"""`lowtide replay`: tables, JSON, and refusals that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from benchmarks.problem_set import TRACES
from typer.testing import CliRunner

from lowtide.cli.main import app
from lowtide.eager_engine.replay import Rules, compiled_replay
from lowtide.ir.tape import load_tape
from tests.ir.traces import network

UNET = TRACES / "unet.jsonl.gz"


def replay(*arguments: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["replay", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "net.jsonl"
    path.write_text(network().text)
    return path


def test_policies_and_budgets_make_a_table_of_the_published_numbers() -> None:
    code, output = replay(UNET, "-p", "dtr-local", "-p", "lru", "-b", "0.9", "-b", "50%", "--published")
    assert code == 0, output
    assert "435 ms and at most 7.84 GiB without a budget" in output
    cells = {line.split("│")[1].strip(): line.split("│")[2:4] for line in output.splitlines() if "│ " in line}
    assert [cell.strip() for cell in cells["dtr-local"]] == ["1.028 x", "1.847 x"]
    assert [cell.strip() for cell in cells["lru"]] == ["1.039 x", "too slow"]


def test_one_budget_is_told_in_detail_for_every_policy() -> None:
    code, output = replay(UNET, "--budget", "5GiB")
    assert code == 0, output
    for word in ("in 5.00 GiB, 63.8 % of that", "evictions", "a search", "msps", "coop-no-in-place", "tide"):
        assert word in output


@pytest.mark.parametrize("accounting", ["addresses", "bytes"])
def test_the_json_has_what_was_asked_and_every_number_of_the_replay(
    tmp_path: Path, accounting: Literal["addresses", "bytes"]
) -> None:
    saved = tmp_path / "results.json"
    asked = (UNET, "-p", "dtr", "-b", "60%", "--accounting", accounting, "--limit", "inf")
    code, output = replay(*asked, "--json", "-")
    assert code == 0, output
    assert replay(*asked, "--json", saved)[0] == 0
    printed, kept = json.loads(output), json.loads(saved.read_text())
    rules = Rules(accounting=accounting, limit=None)
    tape = load_tape(UNET)
    expected = msgspec.to_builtins(compiled_replay(tape, "dtr", int(0.6 * tape.peak_B), rules))
    assert printed["rules"] == msgspec.to_builtins(rules)
    assert printed["peak_B"] == tape.peak_B
    for result in (*printed["results"], *kept["results"], expected):
        del result["search_s"]
    assert printed["results"] == [expected]
    assert kept == printed


def test_a_budget_too_small_is_refused_with_the_reason() -> None:
    code, output = replay(UNET, "-p", "size", "-b", "1.5GiB")
    assert code == 2
    assert "out of memory at event" in output
    assert "Raise the budget" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "nope"), "there is no policy 'nope': write one of coop"),
        (("-b", "12x"), "cannot read the budget '12x'"),
        (("-b", "0.0"), "a share is more than 0"),
        (("-b", "0%"), "a share is more than 0"),
        (("-b", "60% of device"), "a replay knows no device"),
        (("--accounting", "pages"), "'pages' is not one of"),
        (("--limit", "0.5"), "greater than or equal to 1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(small: Path, arguments: tuple[str, ...], words: str) -> None:
    code, output = replay(small, *arguments)
    assert code == 2
    assert words in output


def test_more_than_the_peak_is_a_budget_too(small: Path) -> None:
    assert [
        json.loads(replay(small, "-p", "lru", "-b", share, "--json", "-")[1])["results"][0]["budget_B"]
        for share in ("150%", "1.5", "150 % of plain")
    ] == [int(1.5 * json.loads(replay(small, "-p", "lru", "-b", "1.0", "--json", "-")[1])["peak_B"])] * 3


def test_damaged_and_missing_traces_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(network().text[:-20])
    assert replay(path) == (2, replay(path)[1])
    assert "cut.jsonl is damaged at line" in replay(path)[1]
    assert "cannot be read" in replay(tmp_path / "nothing.jsonl")[1]


def test_it_needs_no_torch(small: Path) -> None:
    hidden = "import sys; sys.modules['torch'] = None"
    code = f"{hidden}; from lowtide.cli.main import app; app(['replay', {str(small)!r}, '-b', '2KiB'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "without a budget" in done.stdout
