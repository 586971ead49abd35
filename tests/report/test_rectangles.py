"""The picture of addresses shows every allocation of a plan, where and when it is, and who holds it."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from lowtide.ir.layout import Layout, LiveBlock
from lowtide.ir.plan import PlanRecord
from lowtide.ir.simulate import simulate
from lowtide.placers.addresses import lay_out
from lowtide.report.canvas import canvas_data, canvas_html
from lowtide.report.html import html_of
from lowtide.report.rectangles import KINDS, AddressMap, Rectangle, address_map
from tests.report.plan_records import MiB, graph, record, schedule

HELD = LiveBlock(3 * MiB, 2 * MiB)


def placed() -> PlanRecord:
    layout = lay_out(graph(), schedule(), live_blocks=(HELD,))
    return msgspec.structs.replace(record(), layout=layout, reserve_B=MiB, budget_kind="enforced")


def drawn() -> AddressMap:
    found = address_map(placed())
    assert found is not None
    return found


def layout_of(made: PlanRecord) -> Layout:
    assert made.layout is not None
    return made.layout


def test_every_allocation_is_a_rectangle_and_none_hides_another() -> None:
    addresses, layout = drawn(), layout_of(placed())
    planned = [r for r in addresses.rectangles if r.step is not None]
    assert [(r.start, r.stop, r.size_B) for r in planned] == [(b.start, b.stop, b.size_B) for b in layout.blocks]
    assert [r.offset_B for r in planned] == list(layout.offsets_B)
    for a, b in itertools.combinations(addresses.rectangles, 2):
        apart = a.stop <= b.start or b.stop <= a.start
        assert apart or a.offset_B + a.size_B <= b.offset_B or b.offset_B + b.size_B <= a.offset_B
    assert all(r.offset_B + r.size_B <= addresses.top_B for r in addresses.rectangles)
    assert addresses.height_B == layout.height_B


def test_rectangles_say_what_they_hold() -> None:
    found = [(r.kind, r.name, r.op, r.place) for r in drawn().rectangles]
    assert ("activation", "a", "aten.addmm.default", "net.addmm model.py:10") in found
    assert ("activation", "b", "aten.native_dropout.default", "net.native_dropout model.py:11") in found
    assert ("again", "b", "aten.native_dropout.default", "net.native_dropout model.py:11") in found
    assert ("temporary", "", "aten.sum.default", "net.sum model.py:13") in found
    assert ("backward", "grad_a", "aten.mul.default", "net.mul model.py:11") in found
    assert ("gradient", "grad_weight", "aten.mm.default", "net.mm model.py:10") in found
    assert ("persistent", "weight", "", "") in found
    assert {kind for kind, _, _, _ in found} == set(KINDS)
    (held,) = [r for r in drawn().rectangles if r.name.startswith("a tensor of an earlier")]
    assert (held.offset_B, held.size_B) == (HELD.offset_B, HELD.size_B)


def test_what_no_plan_moves_is_stacked_upon_the_layout() -> None:
    made, addresses = placed(), drawn()
    above = [r for r in addresses.rectangles if r.step is None and r.offset_B >= addresses.height_B]
    assert [r.size_B for r in above] == [4 * MiB, MiB, MiB]  # the weight, outside the graph, the reserve
    assert addresses.top_B == made.reserved_B == above[-1].offset_B + above[-1].size_B


def test_ticks_become_times_inside_their_step() -> None:
    addresses = drawn()
    times = [addresses.time_s(tick) for tick in range(addresses.ticks + 2)]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(0.018)
    instants = {m.step: m for m in simulate(graph(), schedule()).instants}
    for r in addresses.rectangles:
        if r.step is not None:
            instant = instants[r.step]
            assert instant.start_s - 1e-12 <= addresses.time_s(r.start) <= instant.stop_s + 1e-12
            assert addresses.time_s(r.stop) > addresses.time_s(r.start)
            assert r.name or addresses.time_s(r.stop) <= instant.stop_s + 1e-12


def test_plans_without_addresses_have_no_picture() -> None:
    assert address_map(record()) is None
    assert 'id="addresses"' not in html_of(record())


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="rectangles">(.*?)</script>', text, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_html_has_the_canvas_its_data_and_its_script() -> None:
    text = html_of(placed())
    data = data_of(text)
    columns = ("kind", "start", "stop", "offset_B", "size_B", "step", "name", "op", "place")
    assert {len(data[c]) for c in columns} == {len(drawn().rectangles)}
    assert data["texts"][data["name"][0]] == "a"
    assert data["budget_B"] == 40 * MiB
    assert data["span_ms"] == pytest.approx(18.0)
    assert "values recomputed or fetched" in text
    for identity in ("addresses", "who", "rectangles"):
        assert f'id="{identity}"' in text
        assert f'getElementById("{identity}")' in text
    for kind in KINDS:
        assert f"--{kind}:" in text
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttpRequest", text)
    page = _Balanced()
    page.feed(text)
    assert page.open == []


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag not in {"meta", "br", "line", "polyline", "polygon", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_ten_thousand_rectangles_stay_light() -> None:
    many = tuple(
        Rectangle("activation", f"value_{i}", "aten.mm.default", f"model.py:{i % 100}", i, i, i + 50, 64 * i, 640)
        for i in range(10_000)
    )
    addresses = AddressMap(many, ((0, 0.0), (10_050, 1.0)), 640_640, 640_640)
    assert len(canvas_data(addresses, 10**6, 1.0)) < 700_000
    assert len(canvas_html(addresses)) < 2_000


def test_names_cannot_break_out_of_the_page() -> None:
    hostile = Rectangle("activation", "</script><b>", "op", "", 0, 0, 1, 0, 64)
    text = canvas_data(AddressMap((hostile,), ((0, 0.0), (1, 1.0)), 64, 64), 64, 1.0)
    assert "<" not in text
    assert json.loads(text)["texts"][0] == "</script><b>"
