"""The two clocks of a step: what each segment takes is the slower of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lowtide.ir.issue import issue_text, segment_seconds
from tests.report.plan_records import record


def test_on_a_processor_there_is_one_clock() -> None:
    plan = record()
    assert segment_seconds(plan.graph, plan.schedule) == ()
    assert issue_text(plan.graph, plan.schedule) == ""


def test_each_segment_takes_what_its_slower_clock_says() -> None:
    plan = record()
    first = plan.graph.segments[0]
    recipes = tuple(replace(r, time_s=2e-3, issue_s=5e-3 if r.segment == 0 else 1e-3) for r in plan.graph.recipes)
    graph = replace(plan.graph, recipes=recipes)
    parts = segment_seconds(graph, plan.schedule)
    runs = [p.device_s / 2e-3 for p in parts]
    assert sum(runs) == pytest.approx(sum(type(s).__name__ == "Run" for s in plan.schedule.steps))
    assert parts[0].time_s == parts[0].issue_s > parts[0].device_s
    assert all(p.time_s == max(p.device_s, p.issue_s) for p in parts)
    assert all(1e-3 <= p.issue_s * 2e-3 / p.device_s <= 5e-3 for p in parts)  # recomputed in a later one
    assert f"bound by issuing: {first.name}" in issue_text(graph, plan.schedule)
