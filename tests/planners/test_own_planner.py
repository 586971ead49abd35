"""The planner that `docs/architecture.md` writes as an example is one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem, Status
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.reductions.stages import stage_program
from tests.docs.pages import ROOT
from tests.planners.tape import chain, gpt


def example() -> AbstractPlanner:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## How to add a planner")[1].split("\n## ")[0]
    names: dict[str, type[AbstractPlanner]] = {}
    exec(section.split("```python\n")[1].split("```")[0], names)
    return dataclass(frozen=True)(names["EverySecond"])()


@pytest.mark.parametrize("graph", [gpt(4), chain(12)], ids=["gpt", "chain"])
def test_it_plans_below_keep_all_and_names_what_it_needs(graph: Graph) -> None:
    planner = example()
    most_B = stage_program(graph).keep_all(0).peak_B
    refused = planner.solve(Problem(graph, most_B // 100))
    assert refused.status is Status.INFEASIBLE
    found = planner.solve(Problem(graph, most_B - 1))
    if found.schedule is None:
        assert found.smallest_B is not None
        found = planner.solve(Problem(graph, found.smallest_B))
    assert found.schedule is not None
    check(graph, found.schedule, most_B)
    assert found.stats["winner"] == "every-second"
