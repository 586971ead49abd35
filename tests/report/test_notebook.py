"""What a notebook shows of a plan and of a frontier."""

from __future__ import annotations

import html
import re

import msgspec

from lowtide.results.frontier import Frontier
from lowtide.results.plan import Plan
from tests.browser import looked_at
from tests.ir.frontiers import frontier_record
from tests.report.plan_records import A, record


def document(frame: str) -> str:
    """The page inside the frame."""
    found = re.fullmatch(r'<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', frame, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def test_a_plan_shows_the_answer_and_its_picture() -> None:
    page = document(Plan(record())._repr_html_())
    for fact in ("<th>fits</th>", "<th>overhead</th>", '<svg id="memory"', "38.0 MiB at most of a budget of 40.0 MiB"):
        assert fact in page
    assert not re.search(r"(src|href)=[\"']", page)  # nothing from outside


def test_a_frontier_shows_its_picture() -> None:
    page = document(Frontier(frontier_record())._repr_html_())
    assert "<svg" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=[\"']", page)


def test_names_cannot_leave_the_frame() -> None:
    made = record()
    evil = msgspec.structs.replace(made.graph.values[A], name='"></iframe><script>alert(1)</script>')
    values = (*made.graph.values[:A], evil, *made.graph.values[A + 1 :])
    changed = msgspec.structs.replace(made, graph=msgspec.structs.replace(made.graph, values=values))
    assert "<script>alert" not in document(Plan(changed)._repr_html_())


def test_a_browser_shows_it_without_an_error() -> None:
    shown = Plan(record())._repr_html_() + Frontier(frontier_record())._repr_html_()
    seen = looked_at(f"<!doctype html><meta charset=utf-8><body>{shown}</body>")
    assert seen.errors == ()
