"""What was measured beside other work is said, marked, and measured again when it is quiet."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import other_work
from lowtide.device.other_work import OtherWork
from lowtide.profile import measure
from lowtide.profile.cache import ProfileCache


def _spin(stop_s: float) -> None:
    while time.monotonic() < stop_s:
        pass


def test_a_program_beside_this_one_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as busy:
        watching = OtherWork(threads=1)
        time.sleep(1.0)
        seen = watching.cores()
        busy.kill()
    assert seen > 0.1


def test_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's count is this process's own, here; so nobody else works."""
    monkeypatch.setattr(other_work, "_busy_s", time.process_time)
    watching = OtherWork(threads=1, cores=1)
    _spin(time.monotonic() + 0.3)
    assert watching.cores() < 0.15


def _plan(model: nn.Module, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    lowtide.plan(model, args=(x,), budget="100% of plain")


def test_disturbed_measurements_are_said_marked_and_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether others work is decided here; everything else is as it is."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_LEAST_WINDOW_s", 0.0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.GELU()), torch.randn(64, 32)

    def marked() -> tuple[int, int]:
        cache = ProfileCache()
        tables = [cache._table(file.about.fingerprint).entries.values() for file in cache.store.entries()]
        entries = [entry for table in tables for entry in table]
        return sum(entry.disturbed for entry in entries), len(entries)

    busy = True
    monkeypatch.setattr(OtherWork, "disturbs", lambda _: busy)
    with caplog.at_level(logging.WARNING, "lowtide"):
        _plan(model, x)
    assert "measured while other programs used the processor" in caplog.text
    disturbed, count = marked()
    assert disturbed == count > 0
    caplog.clear()
    _plan(model, x)  # still busy: what is known will do, and nothing is said twice
    assert marked() == (disturbed, count)
    busy = False
    _plan(model, x)
    assert marked() == (0, count)
    assert "other programs" not in caplog.text
