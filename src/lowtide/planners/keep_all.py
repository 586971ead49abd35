"""Keeps every value until its last use: least time, most memory; the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import Schedule
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.reductions.stages import refuses_stages, stage_program
from lowtide.planners.search import Search, conduct


@final
@dataclass(frozen=True)
class KeepAll(AbstractPlanner):
    """Runs the program once, in its order, and drops each value after its last use. O(graph)."""

    name: ClassVar[str] = "keep-all"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; too small a budget is an outcome, not a refusal."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """OPTIMAL if it fits, else INFEASIBLE (proved by the floor) or UNSOLVED."""
        return conduct(problem, watch, self.name, self.refuses(problem), beyond_keep_all())


def keep_all_schedule(graph: Graph) -> Schedule:
    """What the network does by itself: everything is kept, whatever it takes, and nothing runs in place.

    Raises:
        PlanError: if the graph has no stage program.
    """
    program = stage_program(graph, in_place=False)
    return program.lift(program.keep_all(0))


def beyond_keep_all(*stages: tuple[str, Callable[[Search], object]]) -> Callable[[Search], None]:
    """The script of a planner that has something to do only where not everything fits.

    Arguments:
        stages: names and what they do, in order; not run where the floor proves that nothing fits.
    """

    def script(search: Search) -> None:
        search.run("keep_all", keep_all)
        if search.time_ps is not None:
            return
        search.run("floor", find_floor)
        if not search.proved_impossible:
            for name, stage in stages:
                search.run(name, stage)

    return script


def keep_all(search: Search) -> None:
    """Offers the plan that keeps everything. Without recomputations no generator state needs saving."""
    program = search.program
    state = program.keep_all(search.problem.budget_B)
    if program.hidden_B:  # what is hidden comes and goes: the schedule says exactly when
        search.stats["keep_all_peak_B"] = search.offer_schedule(program.lift(state), state.time_ps)
        return
    search.stats["keep_all_peak_B"] = state.peak_B
    search.offer(state)


def find_floor(search: Search) -> None:
    """Proves a floor, and with it perhaps that nothing fits."""
    floor = op_floor(search.program)
    search.floor_B, search.floor_recipes = floor.floor_B, floor.recipes
    search.proved_impossible = floor.floor_B > search.problem.budget_B
