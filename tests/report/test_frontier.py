"""A frontier's words, curves, picture and page are made from the record alone."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowtide.ir.frontier import Baseline
from lowtide.report.frontier import facts, lines, other_lines, render_frontier
from lowtide.report.frontier_page import frontier_html, write_frontier
from lowtide.report.frontier_picture import curves_of, label_of, overhead_ticks, write_frontier_picture
from tests.ir.frontiers import MiB, frontier_record, point
from tests.report.test_pictures import SVG, Page


def test_words_name_floor_smallest_plan_and_who_refuses() -> None:
    text = render_frontier(frontier_record())
    for said in (
        "100 MiB",
        "30.0 MiB",
        "40.0 % more time",
        "1.333 x the floor",
        "the forward is not a chain",
        "model.py:10",
    ):
        assert said in text
    assert "stopped" not in dict(facts(frontier_record()))
    assert "budgets are missing" in dict(facts(frontier_record(stopped="interrupted")))["stopped"]
    assert dict(facts(frontier_record(machine="h200")))["seconds"] == "predicted for h200"


def test_a_line_has_the_figures_of_its_point() -> None:
    told = lines(frontier_record())
    assert len(told) == 5
    assert (told[1].budget, told[1].share, told[1].overhead, told[1].least) == ("80.0 MiB", "80.0 %", "5.0 %", "4.0 %")
    assert told[1].told == "feasible, by annealing"
    assert (told[4].overhead, told[4].gap, told[4].told) == ("", "", "No plan was found.")
    assert told[0].alpha == "1.000"


def test_other_methods_are_listed_with_the_plan_for_the_same_bytes() -> None:
    first, second, third, last = other_lines(frontier_record())
    assert (first.method, first.overhead, first.ours) == ("chen-sqrt", "30.0 %", "15.0 %")
    assert second.ours == "40.0 %"
    assert third.ours == "5.0 %"
    assert (last.budget, last.ours) == ("none", "the forward is not a chain")


def test_curves_are_steps_that_claim_no_more_than_is_known() -> None:
    curves = curves_of(frontier_record())
    assert curves.plan == (
        (40 * MiB, 0.4), (60 * MiB, 0.4), (60 * MiB, 0.15), (80 * MiB, 0.15), (80 * MiB, 0.05), (100 * MiB, 0.05),
        (100 * MiB, 0.0),
    )  # fmt: skip
    assert [(x // MiB, round(y, 9)) for x, y in curves.bound] == [
        (30, 0.5), (32, 0.5), (32, 0.3), (40, 0.3), (40, 0.12), (60, 0.12), (60, 0.04), (80, 0.04), (80, 0.0),
        (100, 0.0),
    ]  # fmt: skip
    assert min(x for x, _ in curves.gap) == 40 * MiB
    assert curves.unknown == (30 * MiB, 40 * MiB)
    assert curves.left_B < 30 * MiB < 100 * MiB < curves.right_B


def test_what_is_far_above_is_named_and_does_not_set_the_scale() -> None:
    far = Baseline(name="revolve", points=(point(50, 9.0, 0.0),))
    curves = curves_of(frontier_record(baselines=(far,)))
    assert curves.top < 1.0
    assert label_of(curves.others[0], curves.top) == "revolve (up to 900 %)"


@pytest.mark.parametrize("top", [0.05, 0.3, 1.3, 40.0])
def test_ticks_are_round_few_and_reach_the_top(top: float) -> None:
    ticks = overhead_ticks(top)
    assert ticks[0] == 0.0
    assert 3 <= len(ticks) <= 14
    assert top / 3 < ticks[-1] <= top


RECORDS = {
    "usual": frontier_record(),
    "without others": frontier_record(baselines=()),
    "keep-all alone": frontier_record(points=(point(100, 0.0, 0.0),), smallest_B=100 * MiB, stopped="interrupted"),
    "where the floor is keep-all": frontier_record(
        points=(point(100, 0.0, 0.0),), smallest_B=100 * MiB, floor_B=100 * MiB, baselines=()
    ),
}
every_record = pytest.mark.parametrize("name", RECORDS)


@every_record
def test_a_file_shows_the_frontier(name: str, tmp_path: Path) -> None:
    write_frontier_picture(RECORDS[name], tmp_path / "frontier.svg")
    root = ElementTree.parse(tmp_path / "frontier.svg").getroot()
    places = [(float(c.get("cx", "nan")), float(c.get("cy", "nan"))) for c in root.iter(f"{SVG}circle")]
    assert len([c for c in root.iter(f"{SVG}circle") if c.get("class") == "point"]) == len(
        {p.reserved_B for p in RECORDS[name].planned}
    )
    assert all(60 <= x <= 1085 and 0 <= y <= 382 for x, y in places)


def test_a_file_names_the_other_methods(tmp_path: Path) -> None:
    shown = {}
    for name in ("usual", "without others"):
        write_frontier_picture(RECORDS[name], tmp_path / "frontier.svg", title="of a test")
        root = ElementTree.parse(tmp_path / "frontier.svg").getroot()
        shown[name] = {t.text for t in root.iter(f"{SVG}text")}
        assert "of a test" in shown[name]
    assert {"A chen-sqrt", "B superneurons-cost"} <= shown["usual"]
    assert not {"A chen-sqrt", "B superneurons-cost"} & shown["without others"]


@every_record
def test_page_needs_nothing_from_outside(name: str, tmp_path: Path) -> None:
    write_frontier(RECORDS[name], tmp_path / "frontier.html")
    text = (tmp_path / "frontier.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script", text)
    assert "tiny &lt;net&gt;" in text
    assert "<net>" not in text
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []


def test_page_draws_and_names_the_other_methods() -> None:
    text = frontier_html(frontier_record())
    assert text.count('class="mark"') == 3
    assert "A chen-sqrt" in text
    assert "<title>superneurons-cost: 90.0 MiB, 12.0 % more time</title>" in text
    assert "the forward is not a chain" in text
