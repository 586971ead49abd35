"""Damaged files of every kind: used, or refused by an error of lowtide's own; never anything else."""

from __future__ import annotations

import logging
import random
import zlib
from pathlib import Path

import pytest

from tests.files.formats import FORMATS, damaged, survives

_COUNT = 40  # per kind and run; thousands were tried when the checks were written


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_used_or_refused(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lowtide")
    form = FORMATS[name]
    good = tmp_path / f"good{form.suffix}"
    good.write_bytes(form.good())
    assert survives(form, good)
    used = 0
    for number in range(_COUNT):
        path = damaged(form, random.Random(zlib.crc32(f"{name} {number}".encode())), tmp_path)
        used += survives(form, path)
        path.unlink()
    assert used < _COUNT or name in ("measurements", "cached plan", "optimizer's needs")
