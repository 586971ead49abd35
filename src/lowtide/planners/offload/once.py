"""A graph in which nothing runs twice: what copies alone can do, and how long they take at the least.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.machine import Machine
from lowtide.planners.offload.rates import Rates
from lowtide.planners.reductions.dead_code import needed_program
from lowtide.planners.reductions.stages import stage_program


def run_once(graph: Graph) -> Graph:
    """The graph in which no operator may run a second time: every schedule of it is one of the graph's own.

    Returns: ids are as before; what nobody needs is not in its program, no random recipe has a replay, and of every
        group the program's own option is left. O(graph).
    """
    return replace(graph, recipes=tuple(map(_once, graph.recipes)), program=needed_program(graph), groups=())


def _once(recipe: Recipe) -> Recipe:
    return replace(recipe, effect=Effect.OPAQUE, state=None) if recipe.effect is Effect.PURE else recipe


def copies_least_s(graph: Graph, budget_B: int, machine: Machine) -> float:
    """Seconds of the links for what does not fit where the step is fullest, sent before and fetched after it.

    Arguments:
        graph: as `run_once` leaves it.

    Returns: seconds that the links need for it, which no plan in the program's order does without. O(graph).
    """
    away_B = max(0, stage_program(graph).keep_all(0).peak_B - budget_B)
    persistent_B = min(away_B, sum(v.size_B for v in graph.values if v.persistent and v.movable))
    rates = Rates.of(machine)
    return away_B * rates.from_s_per_B + (away_B - persistent_B) * rates.to_s_per_B
