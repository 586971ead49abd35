"""Keeps every value until its last use: least time, most memory; the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Schedule
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.search import AbstractSearchPlanner, Search


@final
@dataclass(frozen=True)
class KeepAll(AbstractSearchPlanner):
    """Runs the program once, in its order, and drops each value after its last use. O(graph)."""

    name: ClassVar[str] = "keep-all"

    def script(self, search: Search) -> None:
        """OPTIMAL if it fits, else INFEASIBLE (proved by the floor) or UNSOLVED."""
        beyond_keep_all(search)


def keep_all_schedule(graph: Graph) -> Schedule:
    """What the network does by itself: everything is kept, whatever it takes, and nothing runs in place.

    Raises:
        PlanError: if the graph has no stage program.
    """
    program = stage_program(graph, in_place=False)
    return program.lift(program.keep_all(0))


def beyond_keep_all(
    search: Search,
    *steps: tuple[str, Callable[[Search], object]],
    floor: Callable[[Search], object] | None = None,
) -> None:
    """Offers keep-all; where that does not fit, proves a floor and runs further steps.

    Arguments:
        steps: names and what they do, in order; not run where the floor proves that nothing fits.
        floor: notes a floor, and whether it proves that; `find_floor` if None.
    """
    search.run("keep_all", keep_all)
    if search.time_ps is not None:
        return
    search.run("floor", find_floor if floor is None else floor)
    if not search.proved_impossible:
        for name, step in steps:
            search.run(name, step)


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
