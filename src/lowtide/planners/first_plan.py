"""Answers whether there is a plan, with the first one that is found: for searches over sizes and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.greedy import descend
from lowtide.planners.implementations.joint import first_jointly, has_choices
from lowtide.planners.keep_all import find_floor, keep_all
from lowtide.planners.portfolio import find_smallest
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search, conduct


@final
@dataclass(frozen=True)
class FirstPlan(AbstractPlanner):
    """Keep-all, else greedy descent, else the search for the smallest budget; nothing where the floor forbids it."""

    name: ClassVar[str] = "first-plan"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE, or OPTIMAL when nothing had to be dropped. UNSOLVED names the smallest budget found."""
        refusal = self.refuses(problem)
        if refusal is None and has_choices(problem.graph):
            return first_jointly(problem, watch, self.name, find_smallest)
        return conduct(problem, watch, self.name, refusal, _script, any_order=True)


def _script(search: Search) -> None:
    search.run("keep_all", keep_all)
    search.run("floor", find_floor)
    if search.retention is not None or search.proved_impossible:
        return
    search.run("greedy", descend)
    if search.retention is None:
        search.run("smallest", find_smallest)
