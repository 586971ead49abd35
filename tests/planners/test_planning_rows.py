"""The planning table's rows: which budgets, what is carried from one to the next, and what is shown of them."""

from __future__ import annotations

import functools

import pytest
from benchmarks.planning.rows import ALPHAS, PERCENTS, Ladder, Row, climb, ladder
from benchmarks.planning.tables import tables

from tests.planners.tape import resnet


@functools.cache
def _rungs() -> Ladder:
    return ladder("small", resnet((1, 1), batch=8), quick=False)


@functools.cache
def _rows() -> tuple[Row, ...]:
    return tuple(climb(_rungs(), 1.0, lambda _: None))


def test_budgets_are_shares_of_two_distances_above_the_floor_and_one_just_there() -> None:
    rungs = _rungs()
    labels = [label for label, _ in rungs.budgets]
    assert {f"alpha {a:g}" for a in ALPHAS} | {"1.05 x floor"} <= set(labels)
    assert {label for label in labels if "%" in label} == {
        f"{p} %" for p in PERCENTS if rungs.plain_B * p // 100 >= rungs.floor_B
    }
    sizes_B = [size_B for _, size_B in rungs.budgets]
    assert sizes_B == sorted(sizes_B, reverse=True)
    assert rungs.floor_B <= sizes_B[-1] < sizes_B[0] < rungs.plain_B


def test_rows_keep_their_promises() -> None:
    for row in _rows():
        assert row.bound_s >= row.plain_s * (1 - 1e-6)
        if row.time_s is not None and row.peak_B is not None:
            assert row.peak_B <= row.budget_B
            assert row.time_s >= row.bound_s * (1 - 1e-9)
            assert row.gap == pytest.approx(row.time_s / row.bound_s - 1, abs=1e-5)
        else:
            assert row.gap == float("inf")
        assert (row.close_s is not None) == (row.gap <= 0.005)
    bounds = [row.bound_s for row in _rows()]
    assert bounds == sorted(bounds)


def test_tables_show_every_row_and_why_there_is_no_plan() -> None:
    rows = list(_rows())
    unplanned = Row(**(rows[0].as_data() | {"time_s": None, "peak_B": None, "close_s": None, "status": "UNSOLVED"}))
    easy, hard, worst, every = tables([*rows, unplanned])
    assert every.count("| small |") == len(rows) + 1
    assert "no smaller budget was looked for" in every
    assert "no plan: small" in easy
    assert "alpha 0.05" in hard
    assert "small" in worst
    assert [Row(**row.as_data()) for row in rows] == rows
    hard_before = Row(**(rows[0].as_data() | {"problem": "unet", "label": "30 %"}))
    assert "| unet | 30 % | 28.24 % | 18.70 % | 8.04 % |" in "".join(tables([hard_before]))


def test_a_missing_budget_is_no_row_less(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.planning import planning
    from benchmarks.results_file import MissingRow

    monkeypatch.setattr(planning, "load", lambda _: resnet((1, 1), batch=8))
    monkeypatch.setattr(planning, "climb", lambda *_: iter(_rows()[:-1]))
    with pytest.raises(MissingRow, match="small"):
        planning.measure("small", quick=False, limit_s=1.0)
