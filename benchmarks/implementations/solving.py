"""Seconds until plans for ResNet-50 are as close to their bound as those of MONeT's integer programme.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from benchmarks.implementations.monet_figures import SOLVED, GiB
from benchmarks.implementations.rows import LEVELS, Menu, case
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.results_file import table
from lowtide.ir.plan import Problem
from lowtide.ir.simulate import simulate
from lowtide.planners.base import Progress
from lowtide.planners.portfolio import Portfolio

NETWORK = "resnet50"
GAPS = (0.036, 0.01, 0.005, 0.001)
BUDGETS_GB = (10, 6, 5)
_MENUS: tuple[Menu, ...] = LEVELS[1:]
_KEYS = tuple(f"{menu.name}, {gb} GB" for menu in _MENUS for gb in BUDGETS_GB)
COLUMNS = (
    "what",
    "GB",
    "columns or groups",
    *(f"to {gap:.1%}" for gap in GAPS),
    "last gap",
    "ended after",
    "overhead",
    "how",
)
NOTE = (
    "ResNet-50, 184 images. Gap as in integer programming: what the bound leaves open, over the plan. MONeT: Gurobi on a machine "
    "with 48 cores, 12 threads, its own graph and measured costs; a row of its log. Ours: two cores, everything included from the "
    "graph on; a solve ends at a gap of 0.5 %, so that one of 0.1 % is reached only where the last step lands there."
)


@dataclass
class _Clock:
    """Notes when a solve first came within each gap."""

    began_s: float
    reached_s: dict[float, float] = field(default_factory=dict)

    def watch(self, progress: Progress) -> None:
        self.note(progress.time_s, progress.bound_s)

    def note(self, time_s: float | None, bound_s: float) -> None:
        """A plan's seconds and a bound, as of now."""
        gap = open_share(time_s, bound_s)
        for wanted in GAPS:
            if gap is not None and gap <= wanted:
                self.reached_s.setdefault(wanted, time.perf_counter() - self.began_s)


def open_share(time_s: float | None, bound_s: float) -> float | None:
    """What a bound leaves open of a plan's seconds; None without a plan."""
    return None if time_s is None or time_s <= 0 else max(0.0, 1.0 - bound_s / time_s)


def measure(key: str, effort: Effort) -> list[Row]:
    """One menu at one budget."""
    name, budget = key.split(", ")
    subject = case(NETWORK, next(menu for menu in _MENUS if menu.name == name))
    clock = _Clock(time.perf_counter())
    problem = Problem(subject.graph, int(float(budget.split()[0]) * GiB), time_limit_s=effort.limit_s)
    outcome = Portfolio().solve(problem, clock.watch)
    seconds = time.perf_counter() - clock.began_s
    time_s = None if outcome.schedule is None else simulate(subject.graph, outcome.schedule).time_s
    clock.note(time_s, outcome.bound_s)
    last = open_share(time_s, outcome.bound_s)
    say(f"{NETWORK}, {key}: {percent(last)} after {seconds:.1f} s")
    return [
        {
            "what": f"ours, {name}", "gb": budget.split()[0], "size": f"{len(subject.graph.groups)} groups",
            "reached_s": [clock.reached_s.get(gap) for gap in GAPS], "last": last, "seconds": seconds,
            "overhead": None if time_s is None else time_s / subject.plain_s - 1.0, "how": "2 cores",
        }
    ]  # fmt: skip


def tables(found: Found) -> list[str]:
    """MONeT's rows, then ours."""
    rows = rows_of(found, _KEYS)
    if not rows:
        return []
    lines: list[list[object]] = []
    for gb, gap, seconds, name in SOLVED:
        reached = [f"{seconds:,.0f} s" if math.isclose(gap / 100, wanted) else "-" for wanted in GAPS]
        lines.append(
            [name, f"{gb:g}", "229,431 columns", *reached, f"{gap:.1f} %", f"{seconds:,.0f} s", "-", "48 cores"]
        )
    for row in rows:
        reached = ["never" if s is None else f"{s:.1f} s" for s in row["reached_s"]]
        ended = [percent(row["last"]), f"{row['seconds']:.1f} s", percent(row["overhead"]), row["how"]]
        lines.append([row["what"], row["gb"], row["size"], *reached, *ended])
    return [table("Seconds of planning", COLUMNS, lines, len(SOLVED) + len(rows), NOTE)]


SOLVING_PART = Part("solving", _KEYS, measure, tables)
