"""Budgets, bytes, seconds and fractions as people write them. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

import pytest

from lowtide.errors import BudgetError, LowtideError
from lowtide.units import Budget, format_B, format_percent, format_s, parse_budget


@pytest.mark.parametrize(
    ("text", "size_B"),
    [
        (1, 1),
        (6442450944, 6 * 2**30),
        (1e6, 1_000_000),
        ("123", 123),
        ("1_000", 1000),
        ("6GiB", 6 * 2**30),
        ("6 gib", 6 * 2**30),
        (" 512MiB ", 512 * 2**20),
        ("512 MB", 512_000_000),
        ("1.5KiB", 1536),
        (".5k", 500),
        ("2TiB", 2 * 2**40),
        ("7b", 7),
        ("3G", 3_000_000_000),
    ],
)
def test_bytes(text: int | float | str, size_B: int) -> None:
    assert parse_budget(text) == Budget(size_B=size_B)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("60%", Budget(of_device=0.6)),
        ("100 %", Budget(of_device=1.0)),
        ("60% of device", Budget(of_device=0.6)),
        ("60% of the device", Budget(of_device=0.6)),
        ("50% of plain", Budget(of_plain=0.5)),
        ("12.5 %of plain", Budget(of_plain=0.125)),
        ("150% of plain", Budget(of_plain=1.5)),
    ],
)
def test_fractions(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget
    assert parse_budget(budget) is budget


@pytest.mark.parametrize(
    "text",
    [
        "",
        "much",
        "6 GiBs",
        "6 apples",
        "-1",
        "-5MiB",
        "0",
        0,
        -3,
        0.0,
        1.5,
        "0.1B",
        "0%",
        "0% of plain",
        "101%",
        "-5%",
        "60% of lunch",
        "60 of plain",
        "1e9",
        "6,5GiB",
        "GiB",
        "1 2",
        "1..5k",
        True,
        None,
        [6],
        float("inf"),
        float("nan"),
    ],
)
def test_malformed_budgets_are_refused_with_a_remedy(text: object) -> None:
    with pytest.raises(BudgetError, match="write bytes as an integer") as caught:
        parse_budget(text)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LowtideError)


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(size_B=6 * 2**30), "6.00 GiB"),
        (Budget(of_device=0.6), "60% of the device"),
        (Budget(of_plain=0.125), "12.5% of plain"),
    ],
)
def test_a_budget_is_printed_as_it_was_meant(budget: Budget, text: str) -> None:
    assert str(budget) == text


@pytest.mark.parametrize(
    ("size_B", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (100 * 2**20, "100 MiB"),
        (6 * 2**30, "6.00 GiB"),
        (2**40, "1.00 TiB"),
        (5 * 2**50, "5120 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format_bytes(size_B: int, text: str) -> None:
    assert format_B(size_B) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(1.2, "1.2 s"), (90.0, "90 s"), (0.0351, "35.1 ms"), (4e-6, "4 us"), (0.0, "0 us"), (-0.5, "-500 ms")],
)
def test_format_seconds(time_s: float, text: str) -> None:
    assert format_s(time_s) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.123, "12.3 %"), (0.0, "0.0 %"), (-0.0001, "0.0 %"), (-0.05, "-5.0 %"), (2.0, "200.0 %")],
)
def test_format_percent(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text
