"""A frontier in words: what the numbers are about, a line per budget, and what other methods reach.

Units: `_B` bytes, `_s` seconds; overheads and gaps are fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowtide.ir.frontier import FrontierRecord, Point
from lowtide.report.terminal import Terminal
from lowtide.units import format_B, format_percent, format_s

WIDTH = 120


@dataclass(frozen=True, slots=True)
class Line:
    """One budget as a table shows it; empty texts where there is no plan.

    Arguments:
        share: of what keeping everything needs.
        alpha: fraction of the distance from the floor to keeping everything.
        least: the overhead that the bound leaves possible.
        told: how planning ended, and which stage found the plan; or why there is none.
    """

    budget: str
    share: str
    alpha: str
    overhead: str
    least: str
    gap: str
    told: str


@dataclass(frozen=True, slots=True)
class OtherLine:
    """One plan of another method next to the frontier's for the same bytes."""

    method: str
    budget: str
    share: str
    overhead: str
    ours: str


HEADS = ("budget", "of plain", "alpha", "overhead", "at least", "gap", "")
OTHER_HEADS = ("method", "needs", "of plain", "overhead", "the frontier's there")


def facts(record: FrontierRecord) -> tuple[tuple[str, str], ...]:
    """What a frontier is about, as label and text, in reading order, for every printer to share."""
    smallest = "none found"
    if record.smallest_B is not None:
        there = record.planned[-1]
        smallest = f"{format_B(record.smallest_B)} ({record.smallest_B:,} B), {_overhead(there)} more time"
        if record.floor_B:
            smallest += f"; {record.smallest_B / record.floor_B:.3f} x the floor"
    fixed = f"; {format_B(record.fixed_B)} of each are no values of the graph" if record.fixed_B else ""
    rows = [
        ("graph", record.name),
        ("keep all", f"{format_B(record.keep_all_B)} ({record.keep_all_B:,} B), {format_s(record.keep_all_s)}"),
        ("proved floor", f"{format_B(record.floor_B)} ({record.floor_B:,} B), for {record.floor_class}"),
        ("set by", "; ".join(record.floor_operators)),
        ("smallest plan", smallest),
        ("budgets", f"{record.budget_kind}{fixed}"),
        ("bounds", f"for {record.bound_class}"),
        ("seconds", _seconds(record)),
        ("planner", f"{record.planner}, seed {record.seed}, work {record.work:,} at each budget"),
        ("stopped", f"by {record.stopped}: budgets are missing" if record.stopped else ""),
        ("covers", "; ".join(record.covers.inside)),
        ("outside", "; ".join(record.covers.outside)),
    ]
    return tuple((label, text) for label, text in rows if text)


def lines(record: FrontierRecord) -> tuple[Line, ...]:
    """One line per budget, largest first."""
    return tuple(_line(record, p) for p in record.points)


def other_lines(record: FrontierRecord) -> tuple[OtherLine, ...]:
    """One line per plan of each other method; one with the reason for each that has none."""
    found: list[OtherLine] = []
    for baseline in record.baselines:
        for point in baseline.points:
            ours = record.at(point.budget_B)
            found.append(
                OtherLine(
                    baseline.name,
                    format_B(point.budget_B),
                    _share(record, point.budget_B),
                    _overhead(point),
                    "no plan" if ours is None else _overhead(ours),
                )
            )
        if not baseline.points:
            found.append(OtherLine(baseline.name, "none", "", "", baseline.reason))
    return tuple(found)


def explain_frontier(record: FrontierRecord) -> RenderableType:
    """The frontier as a rich renderable: what it is about, and its tables."""
    about = Table(box=None, show_header=False, pad_edge=False)
    about.add_column(style="bold", no_wrap=True)
    about.add_column(overflow="fold")
    for label, text in facts(record):
        about.add_row(label, Text(text))
    table = _table(HEADS, [(r.budget, r.share, r.alpha, r.overhead, r.least, r.gap, r.told) for r in lines(record)])
    parts: list[RenderableType] = [about, Text(""), table]
    others = [(r.method, r.budget, r.share, r.overhead, r.ours) for r in other_lines(record)]
    if others:
        parts += [Text(""), _table(OTHER_HEADS, others, first="left")]
    return Group(*parts)


def render_frontier(record: FrontierRecord, width: int = WIDTH) -> str:
    """The same as plain text.

    Arguments:
        width: columns of the page.
    """
    page = StringIO()
    Terminal(file=page, width=width, color_system=None, legacy_windows=False).print(explain_frontier(record))
    return page.getvalue()


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], first: str = "right") -> Table:
    """Figures to the right; the last column may be a sentence."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        last = number == len(heads) - 1
        left = last or (number == 0 and first == "left")
        table.add_column(head, justify="left" if left else "right", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _line(record: FrontierRecord, point: Point) -> Line:
    span_B = record.keep_all_B - record.floor_B
    alpha = f"{(point.budget_B - record.floor_B) / span_B:.3f}" if span_B > 0 else ""
    planned = point.time_s is not None
    told = f"{point.status.lower()}, by {point.winner}" if planned else point.reason
    return Line(
        budget=format_B(point.budget_B),
        share=_share(record, point.budget_B),
        alpha=alpha,
        overhead=_overhead(point) if planned else "",
        least=format_percent(point.bound_overhead) if point.bound_s > 0 else "",
        gap="" if point.gap is None else format_percent(point.gap),
        told=told,
    )


def _share(record: FrontierRecord, budget_B: int) -> str:
    return format_percent(budget_B / record.keep_all_B) if record.keep_all_B else ""


def _overhead(point: Point) -> str:
    return format_percent(point.overhead or 0.0)


def _seconds(record: FrontierRecord) -> str:
    """Where the operators' seconds come from."""
    if record.machine:
        return f"predicted for {record.machine}"
    place = record.environment
    return f"measured on {place.device}, {place.threads} threads, torch {place.torch}" if place.torch else ""
