"""A saved plan to run verbs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.ir.text import save_plan
from tests.report.plan_records import record


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """The hand-made plan of the report tests, in a file."""
    path = tmp_path / "plan.json"
    save_plan(record(), path)
    return path
