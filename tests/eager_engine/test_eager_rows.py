"""Rows of the tables that execute eager loops: what they take from the statistics of a run is there."""

from __future__ import annotations

from typing import Any

import msgspec
from benchmarks.eager import executed, soak

from lowtide.eager_engine.eager_stats import EagerStats


def _stats(step: int) -> EagerStats:
    """After some steps, every count as many times as there were steps."""
    numbers = {f.name: f.type(step) for f in msgspec.structs.fields(EagerStats) if f.type in (int, float)}
    return EagerStats(**numbers)


def test_what_is_counted_per_step() -> None:
    steps = executed.WARM + 4
    counts = [msgspec.to_builtins(_stats(step + 1)) for step in range(steps)]
    row = executed.counted({"counts": counts, "seconds_s": [0.5] * steps})
    assert all(row[name] == 1 for name in executed.PER_STEP)
    assert row["departures"] == row["peak_B"] == steps


def test_a_soak_has_a_row() -> None:
    kept: dict[str, Any] = soak.statistics_of(_stats(300))
    row = {
        "network": "lengths", "steps": 300, "budget_B": 400, "same": True, "stats": kept, "time": 1.5,
        "drift": [1.0, 1.0], "growth_MB": [0.0, 0.0],
    }  # fmt: skip
    (text,) = soak.SOAK_PART.tables({"lengths": [row]})
    assert "| equal | 300 | 300 | 300 |" in text
