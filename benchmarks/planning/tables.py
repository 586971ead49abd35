"""What people read of the planning table: every row, the summary that the goals ask for, and the worst cases."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.planning.rows import ALPHAS, CLOSE, OF_FLOOR, Row
from benchmarks.results_file import table
from lowtide.units import format_B, format_s

CLASSES = ((1_500, 1.0), (5_000, 10.0), (20_000, 60.0), (None, None))
"""Operators up to which a problem counts, and the seconds to half a percent that are its goal."""
_WORST = 12
EARLIER = (
    ("unet", "30 %", 0.2824, 0.187),
    ("unet", "25 %", 0.597, 0.243),
    ("resnet_1000_operators", "15 %", 0.345, 0.261),
)
"""Overhead and bound that planning's first measurements had, on a U-Net and a ResNet of the same kind and other sizes."""
COLUMNS = (
    "problem", "operators", "budget", "% of plain", "alpha", "x floor", "plan time", "overhead", "bound overhead", "gap",
    "winner", "peak of budget", "seconds", "to 0.5 %", "status",
)  # fmt: skip


def tables(rows: Sequence[Row]) -> list[str]:
    """All tables, each row of the last one complete."""
    parts = (_easy(rows), _hard(rows), _earlier(rows), _worst(rows))
    every = table("Every budget", COLUMNS, [_cells(r) for r in rows], len(rows))
    return [*(part for part in parts if part), every]


def _cells(row: Row) -> list[object]:
    planned = row.time_s is not None
    return [
        row.problem,
        row.operators,
        format_B(row.budget_B),
        f"{row.percent:.1f}",
        f"{row.alpha:.3f}",
        f"{row.budget_B / row.floor_B:.2f}",
        format_s(row.time_s) if row.time_s is not None else "no plan",
        _percent(row.overhead),
        _percent(row.bound_overhead),
        _percent(row.gap) if planned else "none",
        row.winner,
        f"{row.peak_B / row.budget_B:.3f}" if row.peak_B is not None else "none",
        f"{row.seconds:.1f}",
        "never" if row.close_s is None else f"{row.close_s:.2f}",
        _status(row),
    ]


def _percent(fraction: float | None) -> str:
    return "none" if fraction is None else f"{fraction * 100:.2f} %"


def _status(row: Row) -> str:
    """How it ended; without a plan, the smallest budget for which one is known."""
    if row.time_s is not None:
        return row.status.lower()
    if row.smallest_B is None:
        return f"{row.status.lower()}; no smaller budget was looked for"
    return f"{row.status.lower()}; smallest plan found {format_B(row.smallest_B)}, {row.smallest_B / row.floor_B:.3f} x floor"


def _easy(rows: Sequence[Row]) -> str:
    """Budgets of at least half of keep-all."""
    half = [r for r in rows if r.percent >= 50.0]
    lines: list[list[object]] = []
    below = 0
    for most, goal_s in CLASSES:
        there = [r for r in half if r.operators > below and (most is None or r.operators <= most)]
        name = f"more than {below:,}" if most is None else f"{below + 1:,} to {most:,}"
        below = most or below
        if not there:
            continue
        closed = [r for r in there if r.gap <= CLOSE]
        times = [r.close_s if r.close_s is not None else float("inf") for r in there]
        worst = max(there, key=lambda r: r.gap)
        median_s = statistics.median(times)
        lines.append(
            [
                name,
                len({r.problem for r in there}),
                len(there),
                len(closed),
                "never" if median_s == float("inf") else f"{median_s:.2f} s",
                "none" if goal_s is None else f"{goal_s:g} s",
                _longest(there),
                f"{statistics.median(r.seconds for r in there):.2f} s",
                f"{_gap(worst)}: {worst.problem} {worst.label}",
            ]
        )
    columns = (
        "operators", "problems", "rows", f"gap <= {CLOSE:.1%}", "median time to that", "goal", "longest", "median planning",
        "worst gap",
    )  # fmt: skip
    note = "Goal: every row within half a percent."
    return table("At half of plain and more", columns, lines, len(lines), note) if lines else ""


def _hard(rows: Sequence[Row]) -> str:
    """Tight budgets."""
    kinds: list[tuple[str, Callable[[Row], bool]]] = [
        (f"alpha {a:g}", lambda r, a=a: r.label == f"alpha {a:g}") for a in ALPHAS if a <= 0.25
    ]
    kinds.append((f"{OF_FLOOR} x floor", lambda r: r.label == f"{OF_FLOOR} x floor"))
    kinds.append(("all below half of plain", lambda r: r.percent < 50.0))
    lines: list[list[object]] = []
    for name, wanted in kinds:
        there = [r for r in rows if wanted(r)]
        planned = [r for r in there if r.time_s is not None]
        if not there:
            continue
        worst = max(planned or there, key=lambda r: r.gap)
        lines.append(
            [
                name,
                len(there),
                len(planned),
                ", ".join(dict.fromkeys(r.problem for r in there if r.time_s is None)) or "-",
                _percent(statistics.median(r.overhead or 0.0 for r in planned) if planned else None),
                _percent(statistics.median(r.gap for r in planned) if planned else None),
                f"{_gap(worst)}: {worst.problem} {worst.label}",
            ]
        )
    columns = ("budget", "rows", "plans", "without a plan", "median overhead", "median gap", "worst gap")
    return table("Tight budgets", columns, lines, len(lines)) if lines else ""


def _longest(rows: Sequence[Row]) -> str:
    """The row that took longest to come close, of those that did."""
    came = [(r.close_s, f"{r.problem} {r.label}") for r in rows if r.close_s is not None]
    return "none came" if not came else "{:.2f} s: {}".format(*max(came))


def _earlier(rows: Sequence[Row]) -> str:
    """What was hard before, and is to be half as far from its bound; empty where none of it was measured."""
    by_name = {(r.problem, r.label): r for r in rows}
    lines: list[list[object]] = []
    for problem, label, overhead, bound in EARLIER:
        row = by_name.get((problem, label))
        if row is not None:
            before = [_percent(overhead), _percent(bound), _percent((1 + overhead) / (1 + bound) - 1)]
            lines.append([problem, label, *before, _percent(row.overhead), _percent(row.bound_overhead), _gap(row)])
    columns = (
        "problem",
        "budget",
        "overhead before",
        "bound before",
        "gap before",
        "overhead",
        "bound overhead",
        "gap",
    )
    note = "Before: a U-Net and a ResNet of the same kind, and of other sizes. Goal: half the gap."
    return table("What was hard before", columns, lines, len(lines), note) if lines else ""


def _worst(rows: Sequence[Row]) -> str:
    """The largest gaps."""
    worst = sorted((r for r in rows if r.time_s is not None), key=lambda r: -r.gap)[:_WORST]
    lines = [[r.problem, r.operators, r.label, _percent(r.overhead), _percent(r.bound_overhead), _gap(r), r.winner, f"{r.seconds:.1f}"] for r in worst]  # fmt: skip
    columns = ("problem", "operators", "budget", "overhead", "bound overhead", "gap", "winner", "seconds")
    return table("The largest gaps", columns, lines, len(worst))


def _gap(row: Row) -> str:
    return "no plan" if row.time_s is None else _percent(row.gap)
