"""A saved plan, and a shell to run verbs in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from plan_records import record

from lowtide.ir.text import save_plan


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """The hand-made plan of the report tests, in a file."""
    path = tmp_path / "plan.json"
    save_plan(record(), path)
    return path
