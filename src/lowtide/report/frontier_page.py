"""A frontier as one HTML file that needs nothing but a browser: the picture, the budgets, other methods.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from lowtide.ir.frontier import FrontierRecord
from lowtide.report.frontier import HEADS, OTHER_HEADS, facts, lines, other_lines
from lowtide.report.frontier_picture import frontier_picture, title_of
from lowtide.report.markup import escape
from lowtide.report.page import card_row, fact_table, figure_table, page
from lowtide.report.svg import inline
from lowtide.units import format_B, format_percent, format_s

_HALF = 0.5


def write_frontier(record: FrontierRecord, path: str | PathLike[str]) -> None:
    """Writes the report of a frontier.

    Arguments:
        record: with at least one plan.
        path: of the file to write; an existing one is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    Path(path).write_text(frontier_html(record), encoding="utf-8")


def frontier_html(record: FrontierRecord) -> str:
    """The report of a frontier as the text of one self-contained page."""
    others = [(r.method, r.budget, r.share, r.overhead, r.ours) for r in other_lines(record)]
    body = [
        f"<h1>{escape(record.name or 'lowtide frontier')}</h1>",
        f'<p class="dim">{escape(title_of(record))}</p>',
        _cards(record),
        "<h2>Least time at every budget</h2>",
        f'<div class="chart">{inline(frontier_picture(record), "frontier")}</div>',
        "<h2>Budgets</h2>",
        figure_table(
            HEADS, [(r.budget, r.share, r.alpha, r.overhead, r.least, r.gap, r.told) for r in lines(record)], texts=[6]
        ),
        "<h2>Other methods</h2>" if others else "",
        figure_table(OTHER_HEADS, others, texts=[0, 4]) if others else "",
        "<h2>What these numbers are about</h2>",
        fact_table(facts(record)),
    ]
    return page(record.name or "lowtide frontier", body)


def _cards(record: FrontierRecord) -> str:
    smallest = "none" if record.smallest_B is None else format_B(record.smallest_B)
    note = "" if record.smallest_B is None else f"{format_percent(record.planned[-1].overhead or 0.0)} more time"
    half = record.at(int(_HALF * record.keep_all_B))
    cards = [
        ("keep all", format_B(record.keep_all_B), format_s(record.keep_all_s)),
        ("at half of it", "no plan" if half is None else format_percent(half.overhead or 0.0), "more time"),
        ("smallest plan", smallest, note),
        ("proved floor", format_B(record.floor_B), record.floor_class),
    ]
    return card_row(cards)
