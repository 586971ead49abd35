"""Curves, the SVG file and the HTML page are made from records alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.schedule import Boundary, Drop, Run
from lowtide.ir.simulate import simulate
from lowtide.report.html import html_of, write_html
from lowtide.report.memory_picture import memory_picture, write_memory
from lowtide.report.timeline import keep_all_curve, plan_curve
from tests.report.plan_records import H, MiB, graph, record

SVG = "{http://www.w3.org/2000/svg}"


def test_plain_schedule_runs_the_program_once_and_drops_after_the_last_reader() -> None:
    steps = keep_all_schedule(graph()).steps
    assert tuple(s.recipe for s in steps if isinstance(s, Run)) == graph().program
    assert [s.segment for s in steps if isinstance(s, Boundary)] == [0, 1]
    assert steps[steps.index(Run(3, (5,))) + 1] == Drop(H)
    assert simulate(graph(), keep_all_schedule(graph())).peak_B == 45 * MiB


def test_curves_agree_with_the_claims() -> None:
    made = record()
    plan, plain = plan_curve(made), keep_all_curve(made)
    assert (plan.peak_B, plain.peak_B) == (made.peak_B, made.keep_all_peak_B)
    assert plan.time_s == pytest.approx(made.time_s)
    assert plan.persistent_B == 5 * MiB
    assert [s.name for s in plan.stretches] == ["forward", "backward"]
    assert [p.label for p in plan.points if p.again] == ["aten.native_dropout"]
    assert not any(p.again for p in plain.points)


def test_order_of_events_becomes_time() -> None:
    curve = plan_curve(record())
    times = [curve.time_at(i / 50) for i in range(51)]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(curve.time_s)


def test_an_svg_file_stands_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    log = [(order, (5 + order % 30) * MiB) for order in range(300)]
    write_memory(record(), path, observed={"observed": log, "plain, observed": log, "empty": []})
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    shown = {t.text for t in root.iter(f"{SVG}text")}
    assert {"observed (34.0 MiB)", "plain, observed (34.0 MiB)", "persistent", "budget 40.0 MiB"} <= shown
    assert not any("empty" in (told or "") for told in shown)
    kinds = {name for e in root.iter() for name in e.get("class", "").split()}
    for kind in kinds & {"plan-line", "plain-line", "seen-1-line", "seen-2-line", "persistent", "paper"}:
        assert f".{kind} {{" in text
    assert {"seen-1-line", "seen-2-line"} <= kinds
    assert not re.search(r"https?:|url\(|@import|<script", text.replace("http://www.w3.org/2000/svg", ""))


def test_a_log_is_drawn_from_its_least_to_its_most() -> None:
    made = record()
    curves = plan_curve(made), keep_all_curve(made)
    log = [(order, (1 + order % 7) * 8 * MiB) for order in range(20_000)]
    picture = memory_picture(*curves, made.budget_B, {"observed": log})
    (line,) = [part for part in picture.body if 'class="seen-1-line"' in part]
    points = re.search(r'points="([^"]*)"', line)
    assert points is not None
    places = [tuple(map(float, p.split(","))) for p in points[1].split()]
    assert len(places) < 40_000  # several events fall on one place
    heights = [y for _, y in places]
    assert min(heights) < max(heights)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert max(heights) - min(heights) == pytest.approx((322.0 - 18.0) * 48 / (56 * 1.08), abs=0.2)


class Page(HTMLParser):
    """Collects what a browser would load, and checks that tags close."""

    VOID = frozenset({"meta", "br", "line", "polyline", "polygon", "img", "link", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v or "" for k, v in attrs if k in {"src", "href", "action", "data"}]
        self.rows += tag == "tr"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_needs_nothing_from_outside(tmp_path: Path) -> None:
    write_html(record(), tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttpRequest", text)
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert page.rows > 20


def test_html_shows_the_claims_and_escapes_the_source() -> None:
    text = html_of(record())
    for fact in ("40.0 MiB", "38.0 MiB", "12.5 %", "replayed once", "optimizer state", "2.13.0", "model.py:13"):
        assert fact in text
    assert "y = addmm(x)  # &lt;&amp;&gt;" in text
    assert "# <&>" not in text


def test_html_data_is_what_the_script_reads() -> None:
    text = html_of(record())
    found = re.search(r'<script type="application/json" id="curve">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert max(data["peak_B"]) == record().peak_B
    assert len({len(data[k]) for k in ("start_ms", "peak_B", "step", "label", "place", "again")}) == 1
    assert data["start_ms"] == sorted(data["start_ms"])
