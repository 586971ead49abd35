"""A plan as one HTML file that needs nothing but a browser: numbers, memory over time, addresses, values, covers.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from importlib.resources import files
from os import PathLike
from pathlib import Path

from lowtide.ir.plan import PlanRecord
from lowtide.report.canvas import canvas_data, canvas_html
from lowtide.report.explain import Explanation, Row, costs, explain, sites_shown, spared
from lowtide.report.headline import Headline, headline_rows
from lowtide.report.implementations import Site
from lowtide.report.markup import escape
from lowtide.report.memory_picture import memory_picture, pointer_data
from lowtide.report.page import card_row, fact_table, page
from lowtide.report.rectangles import AddressMap, address_map
from lowtide.report.svg import inline
from lowtide.report.timeline import MemoryCurve, keep_all_curve, plan_curve
from lowtide.units import format_B, format_percent, format_s

_ROWS = 500  # a browser sorts that many without a pause


def write_html(record: PlanRecord, path: str | PathLike[str]) -> None:
    """Writes the report of a plan.

    Arguments:
        record: a legal plan.
        path: of the file to write; an existing one is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    Path(path).write_text(html_of(record), encoding="utf-8")


def html_of(record: PlanRecord) -> str:
    """The report of a plan as the text of one self-contained page."""
    told = explain(record, top=_ROWS)
    plan, plain, addresses = plan_curve(record), keep_all_curve(record), address_map(record)
    picture = memory_picture(plan, plain, record.budget_B)
    head = told.headline
    name = head.name or "lowtide plan"
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="dim">{escape(head.status_text)} Peak at {escape(str(head.peak))}.</p>',
        _cards(head),
        "<h2>Memory over one step</h2>",
        f'<div class="chart">{inline(picture, "memory")}<div id="tip" class="tip"></div></div>',
        "" if addresses is None else f"<h2>Where everything lies</h2>{canvas_html(addresses)}",
        "<h2>The plan</h2>",
        fact_table(headline_rows(head)),
        "<h2>The values that matter</h2>",
        _values(told),
        *_implementations(told),
        "<h2>Where it was measured</h2>",
        fact_table(_environment(head)),
    ]
    return page(name, body, _scripts(plan, plain, addresses, record.budget_B))


def _scripts(plan: MemoryCurve, plain: MemoryCurve, addresses: AddressMap | None, budget_B: int) -> list[str]:
    """The data of the pictures, and the code that shows it."""
    parts = [f'<script type="application/json" id="curve">{pointer_data(plan, plain)}</script>']
    code = ["pointer.js", "page.js"]
    if addresses is not None:
        data = canvas_data(addresses, budget_B, max(plan.time_s, plain.time_s))
        parts.append(f'<script type="application/json" id="rectangles">{data}</script>')
        code.append("canvas.js")
    resources = files("lowtide.report")
    texts = [resources.joinpath(name).read_text(encoding="utf-8") for name in code]
    return [*parts, "<script>", *texts, "</script>"]


def _cards(head: Headline) -> str:
    gap = "no bound" if head.gap == float("inf") else format_percent(head.gap)
    cards = [
        ("budget", format_B(head.budget_B), head.budget_kind),
        ("predicted peak", format_B(head.peak_B), f"{format_B(head.keep_all_peak_B)} when all is kept"),
        ("proved floor", format_B(head.floor_B) if head.floor_B else "none", head.floor_class),
        ("predicted time", format_s(head.time_s), f"{format_s(head.keep_all_time_s)} when all is kept"),
        ("overhead", format_percent(head.overhead), f"at least {format_percent(head.bound_overhead)} by the bound"),
        ("gap", gap, f"{head.status.lower()}, by {head.solver}"),
    ]
    return card_row(cards)


def _environment(head: Headline) -> list[tuple[str, str]]:
    place = head.environment
    rows = [
        ("torch", place.torch),
        ("device", place.device),
        ("threads", str(place.threads or "")),
        ("lowtide", place.lowtide),
    ]
    return [(label, text or "not recorded") for label, text in rows]


def _implementations(told: Explanation) -> list[str]:
    """The call sites that run something else than the program; nothing where there are none."""
    if not told.sites:
        return []
    heads = [("operator", ""), ("implementation", ""), ("results", ""), ("spares", "n"), ("costs", "n"), ("from", "")]
    rows = "".join(_site(s) for s in told.sites)
    return [
        "<h2>Implementations</h2>",
        f'<p class="dim">{escape(sites_shown(told))}. {escape(told.headline.implementations)}.</p>',
        f'<div class="scroll"><table><thead><tr>{_heads(heads)}</tr></thead><tbody>{rows}</tbody></table></div>',
    ]


def _site(site: Site) -> str:
    place = " ".join(part for part in (site.module, site.source) if part)
    return (
        f"<tr><td>{escape(site.what)}</td><td>{escape(site.candidate)}</td><td>{escape(site.numerics.value)}</td>"
        f'<td class="number" data-key="{site.spared_B + site.at_once_B}">{escape(spared(site))}</td>'
        f'<td class="number" data-key="{site.cost_s!r}">{escape(costs(site))}</td><td>{escape(place)}</td></tr>'
    )


def _heads(heads: list[tuple[str, str]]) -> str:
    return "".join(f'<th class="sorts"{" data-number" if kind else ""}>{text}</th>' for text, kind in heads)


def _values(told: Explanation) -> str:
    heads = [("value", ""), ("bytes", "n"), ("fate", ""), ("because", ""), ("cost", "n"), ("from", "")]
    row = _heads(heads)
    shown = f"{len(told.rows)} of {told.matter} values that matter, {format_B(told.matter_B)} in all. "
    note = "A value matters when the device holds it at the peak, or when the plan recomputes or fetches it."
    rows = "".join(_value(r) for r in told.rows)
    table = f'<div class="scroll"><table><thead><tr>{row}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f'<p class="dim">{escape(shown + note)}</p>{table}'


def _value(row: Row) -> str:
    place = " ".join(part for part in (row.module, row.source) if part)
    cost = format_s(row.cost_s) if row.cost_s > 0 else ""
    return (
        f"<tr><td>{escape(row.name)}</td>"
        f'<td class="number" data-key="{row.size_B}">{format_B(row.size_B)}</td>'
        f"<td>{escape(row.fate)}</td><td>{escape(row.because)}</td>"
        f'<td class="number" data-key="{row.cost_s!r}">{cost}</td>'
        f"<td>{escape(place)}<br><code>{escape(row.text)}</code></td></tr>"
    )
