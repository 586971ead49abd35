"""Overheads at shares of plain and at MONeT's budgets, per level of numerics; and the bytes at 10 % overhead.

Units: `_B` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.implementations.monet_figures import PUBLISHED, GiB
from benchmarks.implementations.problems import MACHINES, MONET, NAMES
from benchmarks.implementations.rows import LEVELS, Case, Point, case, climb, planned, summary
from benchmarks.parts import Effort, Found, Part, Row, gib, percent, rows_of, say
from benchmarks.results_file import table

PERCENTS = (50, 40, 33)
MARK = 0.09
TEN = 0.10
CLOSE = 0.01  # of plain: how far apart the ends of a search for bytes may be
_NAMES = [menu.name for menu in LEVELS]
_KEYS = tuple(f"{network}, {menu.name}" for network in NAMES for menu in LEVELS)
_TEN_KEYS = tuple(f"{network}, {menu.name}" for network in MONET for menu in LEVELS)
SHARES = (
    "network", "machine", "implementations", "of plain", "budget, GiB", "floor, GiB", "overhead", "bound overhead", "gap",
    "points gained", "peak, GiB", "planned in", "others than the program's", "mark of 9 %",
)  # fmt: skip
SHARES_NOTE = (
    "Whole training steps, seconds by roofline for the machine named, lowtide's own kernels like torch's by bytes moved and "
    "arithmetic; what is exact is what the families declare, there being no such card to try it on. Overhead: over keeping everything with the program's own "
    "implementations. Bound: of any recomputation and any choice from the implementations of the row. Points gained: over "
    "schedule only, where there is a plan at all. Mark: reached, or what the bound says instead. Planning ended after 8 s at "
    "most, for ResNet-50, GoogLeNet and the U-Net after 60 s or at the default limit of work, beside other work on both cores."
)
BUDGETS_NOTE = (
    "MONeT's overheads are its README's, measured on a P100 of 16 GB over PyTorch with the fastest convolutions; ours are planned "
    "for a P100's roofline, in which convolutions take their arithmetic whatever their algorithm: what MONeT gains by other "
    "algorithms of cuDNN (all of what is below zero) it gains in costs that are not ours. Ours: overhead (bound)."
)
TEN_NOTE = (
    "GiB at 10 % overhead. PyTorch, Checkmate and MONeT: table 1 of MONeT's paper. Kept whole here: what the captured step takes "
    "in torch 2.13 without workspaces; its MobileNet-V2 keeps a copy of the input of every in-place ReLU6. Ours: smallest budget "
    f"found, to within {CLOSE:.0%} of plain; proved: at that budget the bound is above 10 %. Each budget had 6 to 20 s, in which the "
    "larger menu may come less far than the smaller one."
)


def budgets_of(network: str, plain_B: int, effort: Effort) -> list[tuple[str, int]]:
    """Shares of plain, and for MONeT's networks its budgets."""
    shares = [(f"{p} %", plain_B * p // 100) for p in PERCENTS]
    stated = [(f"{gb:g} GB", int(gb * GiB)) for gb in PUBLISHED[network].overheads] if network in MONET else []
    return shares[:1] if effort.quick else [*shares, *stated]


def split(key: str) -> Case:
    """The case that a key names."""
    network, name = key.split(", ")
    return case(network, next(menu for menu in LEVELS if menu.name == name))


def measure(key: str, effort: Effort) -> list[Row]:
    """One network with one menu at every budget."""
    subject = split(key)
    points = climb(subject, budgets_of(subject.network, subject.plain_B, effort), effort.limit_s, say)
    return [point.as_data() for point in points]


def least_B(subject: Case, most: float, limit_s: float, close_B: int | None = None) -> tuple[Point | None, int]:
    """Halves its way to the smallest budget with a plan of at most so much overhead.

    Arguments:
        most: overhead.
        limit_s: of planning, per budget.
        close_B: how far apart the ends of the search may be; None for a hundredth of plain.

    Returns: the plan, None if there was none; and the largest budget for which the bound proves more.
    """
    low_B, high_B, proved_B = subject.floor_B, subject.plain_B, subject.floor_B
    best: Point | None = None
    close_B = int(CLOSE * subject.plain_B) if close_B is None else close_B
    while high_B - low_B > close_B:
        budget_B = (low_B + high_B) // 2
        point, _ = planned(subject, f"{most:.0%}", budget_B, limit_s, enough=most if math.isfinite(most) else None)
        say(f"{subject.network}, {subject.menu.name}, {gib(budget_B)} GiB: {summary(point)}")
        if point.overhead is not None and point.overhead <= most:
            best, high_B = point, point.peak_B if point.peak_B is not None else budget_B
        else:
            low_B = budget_B
            if point.bound_overhead > most or point.status == "INFEASIBLE":
                proved_B = max(proved_B, budget_B)
    return best, proved_B


def measure_ten(key: str, effort: Effort) -> list[Row]:
    """One network with one menu: the bytes at 10 % overhead."""
    subject = split(key)
    best, proved_B = least_B(subject, TEN, effort.limit_s)
    return [
        {
            "network": subject.network,
            "menu": subject.menu.name,
            "plain_B": subject.plain_B,
            "peak_B": None if best is None else best.peak_B,
            "proved_B": proved_B,
        }
    ]


def shares_table(found: Found) -> str:
    """Every level at every share of plain."""
    points = [Point(**row) for row in rows_of(found, _KEYS)]
    shown = [p for p in points if p.label.endswith("%")]
    plain = {(p.network, p.label): p for p in shown if p.menu == _NAMES[0]}
    lines = [_share_line(p, plain.get((p.network, p.label))) for p in shown]
    expected = sum(1 for key in _KEYS for row in found.get(key, []) if row["label"].endswith("%"))
    return table("At shares of plain", SHARES, lines, expected, SHARES_NOTE)


def _share_line(p: Point, schedule_only: Point | None) -> list[object]:
    return [
        p.network, MACHINES[p.network], p.menu, p.label, gib(p.budget_B), gib(p.floor_B), percent(p.overhead),
        percent(p.bound_overhead) if p.overhead is not None or p.status != "INFEASIBLE" else "no plan",
        percent(p.gap, "none"), _gained(p, schedule_only), gib(p.peak_B), f"{p.seconds:.1f} s", _chosen(p), _mark(p),
    ]  # fmt: skip


def _gained(p: Point, schedule_only: Point | None) -> str:
    if schedule_only is None:
        return "not measured"
    if p.overhead is None:
        return "none"
    if schedule_only.overhead is None:
        return "a plan at all"
    return f"{100 * (schedule_only.overhead - p.overhead):.2f}"


def _chosen(p: Point) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(p.chosen.items())) or "none"


def _mark(p: Point) -> str:
    if p.overhead is not None and p.overhead <= MARK:
        return "reached"
    if p.status == "INFEASIBLE":
        return "proved impossible"
    if p.bound_overhead > MARK:
        return f"bound: {percent(p.bound_overhead)}"
    return "not reached"


def budgets_table(found: Found) -> str:
    """Every level at MONeT's budgets, beside its own figures."""
    lines, expected = [], 0
    for network in MONET:
        by_menu = {menu: {r["label"]: Point(**r) for r in found.get(f"{network}, {menu}", [])} for menu in _NAMES}
        if not all(any("GB" in label for label in points) for points in by_menu.values()):
            continue
        for gb, overhead in PUBLISHED[network].overheads.items():
            expected += 1
            ours = [_short(by_menu[menu][f"{gb:g} GB"]) for menu in _NAMES]
            lines.append([network, f"{gb:g}", f"{overhead:.2f} %", *ours])
    columns = ("network", "GB", "MONeT, measured", *_NAMES)
    return table("At MONeT's budgets", columns, lines, expected, BUDGETS_NOTE) if lines else ""


def _short(p: Point) -> str:
    if p.overhead is None:
        return "proved impossible" if p.status == "INFEASIBLE" else "no plan"
    return f"{percent(p.overhead)} ({percent(p.bound_overhead)})"


def ten_table(found: Found) -> str:
    """Bytes at 10 % overhead beside those of the paper."""
    lines = []
    for network in MONET:
        ours = [found.get(f"{network}, {menu}", []) for menu in _NAMES]
        if not all(ours):
            continue
        plain, checkmate, monet = PUBLISHED[network].at_ten
        shown = [_proved(row) for (row,) in ours]
        least = min((row["peak_B"] for (row,) in ours if row["peak_B"] is not None), default=None)
        ratio = "none" if least is None else f"{ours[0][0]['plain_B'] / least:.2f}"
        lines.append(
            [network, plain, checkmate, monet, f"{plain / monet:.2f}", gib(ours[0][0]["plain_B"]), *shown, ratio]
        )
    columns = (
        "network", "PyTorch", "Checkmate", "MONeT", "PyTorch over MONeT", "kept whole here", *_NAMES, "kept whole over least",
    )  # fmt: skip
    return table("Memory at 10 % overhead", columns, lines, len(lines), TEN_NOTE) if lines else ""


def _proved(row: Row) -> str:
    return f"{gib(row['peak_B'])} (proved: above {gib(row['proved_B'])})"


def _level_tables(found: Found) -> Sequence[str]:
    return [part for part in (shares_table(found), budgets_table(found)) if part]


LEVEL_PART = Part("levels", _KEYS, measure, lambda found: list(_level_tables(found)))
TEN_PART = Part("ten", _TEN_KEYS, measure_ten, lambda found: [part for part in (ten_table(found),) if part])
