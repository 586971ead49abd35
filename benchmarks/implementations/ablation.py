"""What each kind of implementation brings, added one after another: bytes and seconds of three networks.

Units: `_B` bytes.
"""

from __future__ import annotations

from benchmarks.implementations.levels import TEN, least_B
from benchmarks.implementations.rows import SCHEDULE_ONLY, Menu, Point, case, climb
from benchmarks.parts import Effort, Found, Part, Row, gib, percent, rows_of, say
from benchmarks.results_file import table
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import ALGORITHMS, IN_PLACE, KINDS, LOSS, SAVED

NETWORKS = ("resnet50", "gpt2", "unet")
PERCENTS = (50, 33)
_ADDED = (("+ in-place", IN_PLACE), ("+ saved-value forms", SAVED), ("+ algorithms", ALGORITHMS), ("+ loss", LOSS))
COLUMNS = (
    "network", "implementations", "groups", "floor, GiB", "at 10 % overhead, GiB", *(f"overhead at {p} %" for p in PERCENTS),
    *(f"bound at {p} %" for p in PERCENTS), *(f"step at {p} %, ms" for p in PERCENTS),
)  # fmt: skip
NOTE = (
    "Level reassociated; each row has what the rows above it have. Bytes: the proved floor, and the smallest budget found for a "
    "plan of at most 10 % overhead. Seconds by roofline: of the whole step at shares of what keeping everything takes. Planning ended "
    "after 8 s at most, for the U-Net after 20 s, beside other work on both cores (load 9)."
)


def menus() -> list[Menu]:
    """Schedule only, then one kind more each, then everything."""
    found, there = [SCHEDULE_ONLY], set()
    for name, kind in _ADDED:
        there.add(kind)
        found.append(Menu(name, Numerics.REASSOCIATED, tuple(k for k in KINDS if k not in there)))
    return [*found, Menu("all", Numerics.REASSOCIATED)]


_KEYS = tuple(f"{network}, {menu.name}" for network in NETWORKS for menu in menus())


def measure(key: str, effort: Effort) -> list[Row]:
    """One network with one menu."""
    network, name = key.split(", ")
    subject = case(network, next(menu for menu in menus() if menu.name == name))
    budgets = [(f"{p} %", subject.plain_B * p // 100) for p in (PERCENTS[:1] if effort.quick else PERCENTS)]
    points = climb(subject, budgets, effort.limit_s, say)
    ten, _ = (None, 0) if effort.quick else least_B(subject, TEN, effort.limit_s)
    return [
        {
            "network": network,
            "menu": name,
            "groups": len(subject.graph.groups),
            "floor_B": subject.floor_B,
            "ten_B": None if ten is None else ten.peak_B,
            "points": [point.as_data() for point in points],
        }
    ]


def tables(found: Found) -> list[str]:
    """One row per network and menu."""
    rows = rows_of(found, _KEYS)
    lines = [_line(row) for row in rows]
    return [table("Ablation", COLUMNS, lines, len(rows), NOTE)] if lines else []


def _line(row: Row) -> list[object]:
    points = {p["label"]: Point(**p) for p in row["points"]}
    at = [points.get(f"{p} %") for p in PERCENTS]
    return [
        row["network"], row["menu"], row["groups"], gib(row["floor_B"]), gib(row["ten_B"]),
        *("not run" if p is None else percent(p.overhead) for p in at),
        *("not run" if p is None else "no plan" if p.status == "INFEASIBLE" else percent(p.bound_overhead) for p in at),
        *("none" if p is None or p.time_s is None else f"{p.time_s * 1e3:.1f}" for p in at),
    ]  # fmt: skip


ABLATION_PART = Part("ablation", _KEYS, measure, tables)
