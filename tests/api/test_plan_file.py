"""Plans for graphs from files: what a capture would get, and shares only of what a file knows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lowtide
from lowtide.errors import BudgetError, InfeasibleBudget, PlanFileError
from lowtide.ir.likeness import memory, seconds_apart
from lowtide.ir.text import load_graph, save_graph
from lowtide.planners.base import Progress
from tests.ir import examples
from tests.ir.traces import network
from tests.networks import NETWORKS


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json.gz"
    save_graph(examples.chain(), path)
    return path


def test_a_saved_graph_gets_the_plan_that_its_model_gets(tmp_path: Path) -> None:
    torch._dynamo.reset()
    network, path = NETWORKS["mixed"], tmp_path / "mixed.json.gz"
    options = {"budget": "80% of plain", "work": 5_000}
    plan = lowtide.plan(network.build(), network.batches(1)[0], machine="a100", save_graph=path, **options)
    graph = load_graph(path)
    assert memory(graph) == memory(plan.record.graph)
    assert seconds_apart(graph, plan.record.graph) == 0
    again = lowtide.plan_file(path, **options)
    if not plan.record.outside_B:  # a file knows nothing of what no graph reads
        assert (again.time_s, again.peak_B, again.budget_B) == (plan.time_s, plan.peak_B, plan.budget_B)
    plan.save_graph(tmp_path / "again.json")
    assert load_graph(tmp_path / "again.json") == graph


def test_the_graph_of_what_does_not_fit_is_saved_as_well(tmp_path: Path) -> None:
    torch._dynamo.reset()
    network, path = NETWORKS["mixed"], tmp_path / "mixed.json"
    with pytest.raises(InfeasibleBudget):
        lowtide.plan(network.build(), network.batches(1)[0], budget=1, machine="a100", save_graph=path)
    with pytest.raises(InfeasibleBudget) as caught:
        lowtide.plan_file(path, budget=1)
    assert caught.value.floor_B > 1
    assert "nothing has been changed" in str(caught.value)


def test_a_plan_for_a_file_claims_saves_and_explains(graph_file: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    plan = lowtide.plan_file(graph_file, budget="100% of plain", watch=seen.append)
    assert plan.budget_B == plan.peak_B == plan.record.keep_all_peak_B
    assert plan.time_s == pytest.approx(7.5)
    assert plan.budget_kind == "accounted"
    assert any("optimizer" in text for text in plan.covers.outside)
    assert seen[-1].plain_s == pytest.approx(7.5)
    plan.save(tmp_path / "plan.json")
    assert lowtide.Plan.load(tmp_path / "plan.json").record == plan.record
    plan.to_html(tmp_path / "plan.html")
    assert "tangent" in plan.explain()


def test_a_trace_is_planned_and_its_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.jsonl"
    path.write_text(network().text)
    plan = lowtide.plan_file(path, budget=400)
    assert "net.jsonl:" in plan.explain()
    assert plan.peak_B <= 400


def test_shares_of_a_device_and_other_mistakes_are_refused(graph_file: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="no device to take a share of"):
        lowtide.plan_file(graph_file, budget="60%")
    with pytest.raises(BudgetError, match="cannot read the budget"):
        lowtide.plan_file(graph_file, budget="lots")
    with pytest.raises(PlanFileError, match="cannot be read"):
        lowtide.plan_file(tmp_path / "none.json", budget=1)


def test_a_search_that_ends_too_soon_says_so(graph_file: Path) -> None:
    with pytest.raises(InfeasibleBudget) as whole:
        lowtide.plan_file(graph_file, budget=1)
    assert whole.value.smallest_B is not None
    with pytest.raises(InfeasibleBudget, match="allow more time or work") as caught:
        lowtide.plan_file(graph_file, budget=whole.value.smallest_B, time_limit_s=1e-9)
    assert "above the floor" not in str(caught.value)
