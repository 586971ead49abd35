"""`lowtide plan --max-batch` and `lowtide fits`, on a small model of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lowtide.cli.main import app
from lowtide.ir.text import load_plan

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
    def forward(self, x, scale):
        for layer in self.layers:
            x = torch.tanh(layer(x)) * scale
        return x.square().mean()

def step(device="cpu"):
    net = Net().to(device)
    return net, (torch.ones(16, 32, device=device),), {"scale": torch.ones((), device=device)}, torch.optim.SGD(net.parameters(), 0.1)

def meta(): return step("meta")
def sequence():
    net, (x,), kwargs, optimizer = step()
    return net, (x, torch.ones(8, 32)), {}
def wrong(): return *step()[:3], "sgd"
"""  # noqa: E501


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch._dynamo.reset()
    path = tmp_path / f"user_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "cache"))
    return path


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_the_largest_batch_is_found_shown_and_saved(script: Path, tmp_path: Path) -> None:
    result = _run(
        "plan", f"{script}:step", "--budget", "128KiB", "--max-batch", "--multiple-of", "16", "--work", "2000", "-o",
        "plan.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "verified by a step" in result.output
    assert "foreseen" in result.output
    assert load_plan(tmp_path / "plan.json").budget_B == 128 * 1024
    result = _run(
        "plan", f"{script}:step", "--budget", "128KiB", "--max-batch", "--vary", "x:0", "--multiple-of", "16",
        "--work", "2000", "--no-verify", "--overhead-limit", "0.2", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["size"] % 16 == 0
    assert answer["size"] >= answer["plain_size"] > 0
    assert answer["verified"] is False
    assert answer["overhead"] <= 0.2
    assert answer["reserved_B"] <= answer["budget_B"] == 128 * 1024
    assert {"size", "fits", "needed_B", "seconds_s", "how", "note"} == set(answer["tried"][0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{}:step", "--budget", "50% of plain", "--max-batch"), "grows with the batch"),
        (("{}:step", "--budget", "1KiB", "--max-batch"), "not even size 1 fits"),
        (("{}:step", "--budget", "1MiB", "--max-batch", "--vary", "y"), "no tensor argument y"),
        (("{}:step", "--budget", "1MiB", "--max-batch", "--batch-dim", "2"), "no dimension 2"),
        (("{}:sequence", "--budget", "1MiB", "--max-batch"), "x 16, scale 8"),
        (("{}:step", "--budget", "1MiB", "--json"), "of no effect without --max-batch"),
        (("{}:step", "--budget", "1MiB", "--max-batch", "--time-limit", "3"), "--work"),
        (("{}:wrong", "--budget", "1MiB", "--max-batch"), "optimizer's place"),
    ],
)
def test_what_makes_no_sense_is_explained(script: Path, arguments: tuple[str, ...], words: str) -> None:
    result = _run("plan", *(a.format(script) for a in arguments))
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_whether_it_fits_is_said_and_is_the_exit_code(script: Path) -> None:
    for target in ("step", "meta"):
        result = _run("fits", f"{script}:{target}", "--device", "RTX 4090")
        assert result.exit_code == 0, result.output
        assert "fits as it is" in result.output
        assert "predicted, not measured" in result.output
    result = _run("fits", f"{script}:meta", "--device", "45KiB", "--json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["fits"] is False
    assert answer["memory_B"] == 45 * 1024
    assert answer["floor_B"] > answer["memory_B"]
    assert answer["largest_batch"] == 0


def test_an_unknown_card_is_explained(script: Path) -> None:
    result = _run("fits", f"{script}:step", "--device", "h9000")
    assert result.exit_code == 2
    assert "choose b200" in result.output
