"""Predicted against observed: the error's denominator, bit equality, and what counts as a broken promise."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from lowtide.report.comparison import Comparison, comparison_rows, comparison_table, loss_table
from tests.report.plan_records import MiB

RUN = Comparison(
    name="tiny", budget_B=60 * MiB, budget_kind="accounted", persistent_B=20 * MiB, predicted_peak_B=101 * MiB // 2,
    observed_peak_B=50 * MiB, plain_peak_B=100 * MiB, predicted_time_s=0.12, keep_all_time_s=0.1,
    observed_time_s=0.13, plain_time_s=0.104, spread=0.02, bound_s=0.11, bound_class="program order",
    losses=(5.0, 4.0, 3.5), plain_losses=(5.0, 4.0, 3.5), states_equal=(("parameters", True), ("generator", True)),
)  # fmt: skip


def _text(table: object) -> str:
    page = StringIO()
    Console(file=page, width=140, color_system=None).print(table)
    return page.getvalue()


def test_error_is_taken_over_what_a_plan_can_change() -> None:
    assert RUN.peak_error == pytest.approx(1 / 60)
    assert replace(RUN, persistent_B=50 * MiB).peak_error == 0.0


def test_ratios() -> None:
    assert RUN.overhead == pytest.approx(0.25)
    assert RUN.predicted_overhead == pytest.approx(0.2)
    assert RUN.bound_overhead == pytest.approx(0.1)
    assert RUN.gap == pytest.approx(0.12 / 0.11 - 1)
    assert replace(RUN, bound_s=0.0).gap == float("inf")


def test_a_kept_promise() -> None:
    assert RUN.unequal_steps == ()
    assert RUN.broken == ()


@pytest.mark.parametrize(
    ("losses", "unequal"),
    [((5.0, 4.0000000001, 3.5), (1,)), ((5.0, 4.0), (2,)), ((5.0, 4.0, 3.5, 3.0), (3,)), ((-0.0, 4.0, 3.5), (0,))],
)
def test_one_bit_is_enough(losses: tuple[float, ...], unequal: tuple[int, ...]) -> None:
    plain = (0.0, 4.0, 3.5) if losses[0] == 0.0 else RUN.plain_losses
    run = replace(RUN, losses=losses, plain_losses=plain)
    assert run.unequal_steps == unequal
    assert run.broken


def test_every_broken_promise_is_named() -> None:
    run = replace(
        RUN,
        observed_peak_B=61 * MiB,
        predicted_peak_B=60 * MiB,
        states_equal=(("parameters", True), ("generator state", False)),
    )
    assert run.broken == ("final generator state differ", "the observed peak is 1.00 MiB over the budget")
    assert replace(RUN, predicted_peak_B=49 * MiB).broken == ("the predicted peak is off by -3.3 %",)
    assert replace(RUN, losses=(), plain_losses=()).broken


def test_tables_show_both_sides() -> None:
    text = _text(comparison_table(RUN))
    for fact in ("60.0 MiB, accounted", "50.5 MiB", "50.0 MiB", "1.7 %", "25.0 %", "20.0 %", "3 of 3 steps", "yes"):
        assert fact in text
    assert "NO" in _text(comparison_table(replace(RUN, states_equal=(("parameters", False),))))
    assert comparison_rows(replace(RUN, bound_s=0.0))[8][:2] == ("gap to the bound", "no bound")


def test_losses_are_thinned_but_differences_stay() -> None:
    plain = tuple(float(i) for i in range(100))
    ours = (*plain[:37], 99.0, *plain[38:])
    lines = _text(loss_table(replace(RUN, plain_losses=plain, losses=ours), most=10)).splitlines()
    assert len(lines) < 16
    assert [line.split()[0] for line in lines if line.rstrip().endswith("differ")] == ["37"]
    assert lines[-1].split()[0] == "99"


def test_an_enforced_budget_is_held_to_its_reserved_bytes() -> None:
    run = replace(RUN, predicted_reserved_B=50 * MiB, observed_reserved_B=50 * MiB, budget_kind="enforced")
    assert run.broken == ()
    assert "reserved, holes included" in _text(comparison_table(run))
    assert "reserved" not in _text(comparison_table(RUN))
    assert replace(run, observed_reserved_B=61 * MiB).broken[0] == "the reserved bytes are 1.00 MiB over the budget"
    assert "off by" in replace(run, predicted_reserved_B=51 * MiB).broken[0]
