"""A frontier as data: what it answers, its invariant, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lowtide.errors import PlanFileError
from lowtide.ir.frontier import FrontierRecord, disorder
from lowtide.ir.text import dumps, load_frontier, loads, save_frontier
from tests.ir.frontiers import MiB, frontier_record, point


def test_a_budget_is_answered_by_the_largest_point_within_it() -> None:
    record = frontier_record()
    assert record.at(79 * MiB) == record.points[2]
    assert record.at(80 * MiB) == record.points[1]
    assert record.at(10**12) == record.points[0]
    assert record.at(39 * MiB) is None
    assert len(record.planned) == 4


def test_a_file_gives_the_same_frontier_back(tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    save_frontier(frontier_record(), path)
    assert load_frontier(path) == frontier_record()
    assert loads(dumps(frontier_record()), FrontierRecord) == frontier_record()
    body = json.loads(path.read_text())["body"]
    assert body["points"][1]["overhead"] == 0.05
    assert body["baselines"][2]["reason"] == "the forward is not a chain"


ORDERS = {
    "budgets do not fall": (point(80, 0.1, 0.0), point(90, 0.2, 0.0)),
    "a bound does not hold for fewer bytes": (point(80, 0.1, 0.1), point(70, 0.2, 0.0)),
    "a plan does not serve more bytes": (point(80, 0.2, 0.0), point(70, 0.1, 0.0)),
    "faster than its bound": (point(80, 0.1, 0.2),),
    "takes more": (replace(point(80, 0.2, 0.1), reserved_B=81 * MiB),),
}


@pytest.mark.parametrize("said", ORDERS)
def test_points_out_of_order_are_found(said: str, tmp_path: Path) -> None:
    wrong = frontier_record(points=ORDERS[said])
    assert said in disorder(wrong)
    save_frontier(wrong, tmp_path / "wrong.json")
    with pytest.raises(PlanFileError, match=f"is damaged: .*{said}"):
        load_frontier(tmp_path / "wrong.json")
    assert disorder(frontier_record()) == ""


DAMAGE: dict[str, Any] = {
    "truncated": lambda text: text[: len(text) // 2],
    "has no such header": lambda text: text.replace('"lowtide"', '"another"', 1),
    "is newer than this lowtide's": lambda text: text.replace('"version":1', '"version":9', 1),
    "holds a 'plan', not a frontier": lambda text: text.replace('"frontier"', '"plan"', 1),
    "is damaged": lambda text: text.replace('"budget_B":', '"budget":'),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_damage_is_named(said: str, tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    path.write_text(DAMAGE[said](dumps(frontier_record())), encoding="utf-8")
    with pytest.raises(PlanFileError, match=said):
        load_frontier(path)
    with pytest.raises(PlanFileError, match="cannot be read"):
        load_frontier(tmp_path / "nowhere.json")
