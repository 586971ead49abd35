"""Plans and frontiers as notebooks show them: the answer and the picture, in a frame of their own.

A frame keeps the page's style away from the notebook's, and the other way round; its document is inside it, so that a
saved notebook shows the same without lowtide and without a network.
"""

from __future__ import annotations

from importlib.resources import files

from lowtide.ir.frontier import FrontierRecord
from lowtide.ir.plan import PlanRecord
from lowtide.report.answer import answer
from lowtide.report.frontier_picture import frontier_picture, title_of
from lowtide.report.headline import headline
from lowtide.report.markup import escape
from lowtide.report.memory_picture import memory_picture, pointer_data
from lowtide.report.page import fact_table, page
from lowtide.report.svg import inline
from lowtide.report.timeline import keep_all_curve, plan_curve

_HEIGHT_px = 540


def plan_frame(record: PlanRecord) -> str:
    """A plan as HTML for a notebook: five lines that answer, and memory over one step.

    Arguments:
        record: a legal plan.
    """
    plan, plain = plan_curve(record), keep_all_curve(record)
    picture = memory_picture(plan, plain, record.budget_B)
    body = [
        fact_table(answer(headline(record))),
        f'<div class="chart">{inline(picture, "memory")}<div id="tip" class="tip"></div></div>',
    ]
    code = files("lowtide.report").joinpath("pointer.js").read_text(encoding="utf-8")
    data = f'<script type="application/json" id="curve">{pointer_data(plan, plain)}</script>'
    return _frame(page("lowtide plan", body, [data, "<script>", code, _page_script(), "</script>"]))


def frontier_frame(record: FrontierRecord) -> str:
    """A frontier as HTML for a notebook: its title and its picture.

    Arguments:
        record: with at least one plan.
    """
    body = [
        f'<p class="dim">{escape(title_of(record))}</p>',
        f'<div class="chart">{inline(frontier_picture(record), "frontier")}</div>',
    ]
    return _frame(page("lowtide frontier", body))


def _page_script() -> str:
    return files("lowtide.report").joinpath("page.js").read_text(encoding="utf-8")


def _frame(document: str) -> str:
    """A document inside the element that shows it; its scripts can reach nothing outside."""
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{_HEIGHT_px}px;border:0" title="lowtide" '
        f'srcdoc="{escape(document)}"></iframe>'
    )
