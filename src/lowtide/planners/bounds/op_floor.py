"""Bytes that no schedule can do without, and the recipes that need them.

Class: any recomputation; first runs in program order; one implementation per operator, in place or not. Generator
states are taken to weigh nothing, so the floor holds for the graph as it is.

Units: `_B` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lowtide.planners.reductions.stage import EXIT
from lowtide.planners.reductions.stages import StageProgram

CUTS = 12  # stages at which the minimum cut is computed


@dataclass(frozen=True, slots=True)
class Floor:
    """A proved floor and the program recipes whose stages reach at least 99 % of it, largest first."""

    floor_B: int
    recipes: tuple[int, ...]


def op_floor(program: StageProgram, cuts: int = CUTS) -> Floor:
    """Proves a floor.

    Per stage: persistent values, what it reads, its own trace's peak, and what is needed later and cannot be
    rematerialised; where values are handed over, all that leave together. At the most promising stages the exact
    minimum cut: the least bytes from which everything needed later can be computed at all.

    Arguments:
        cuts: how many minimum cuts to compute.

    O(graph) for the floors, and `cuts` maximum flows.
    """
    core = program.core
    floors_B = core.operator_floors().copy()
    keep_all_B = program.keep_all(0).live_B()
    # A stage can be raised to at most what is live there when everything is kept.
    floor_B = int(floors_B.max(initial=0))
    promising = np.argsort(-keep_all_B, kind="stable")
    promising = promising[keep_all_B[promising] > floor_B]
    chosen = {int(t) for t in promising[:: max(1, len(promising) // max(1, cuts - 2))][: cuts - 1]}
    chosen.add(int(floors_B.argmax()))
    for t in sorted(chosen):
        floors_B[t] = max(int(floors_B[t]), core.cut_floor(t))
    floor_B = int(floors_B.max(initial=0))
    setters = [int(t) for t in np.argsort(-floors_B, kind="stable") if floors_B[t] >= 0.99 * floor_B]
    return Floor(floor_B, tuple(dict.fromkeys(r for t in setters[:32] for r in _recipes_of(program, t))))


def once_behind_the_turn(program: StageProgram) -> StageProgram:
    """The program in which what runs behind each part's first segment runs once: its gradients are never recomputed.

    A floor of it is one for fewer schedules, those of nearly all known methods, and says more: the floor for any
    recomputation lets finished gradients be dropped and computed a second time.
    """
    first: dict[int, int] = {}
    for k, segment in enumerate(program.graph.segments):
        first.setdefault(segment.part, k)
    forward = set(first.values())
    stages = (s if s.segment in forward else replace(s, recompute_through=-1) for s in program.stages)
    return replace(program, stages=tuple(stages))


def _recipes_of(program: StageProgram, t: int) -> list[int]:
    """The recipe of a stage; for an exit, those that make the largest values handed over there."""
    stage = program.stages[t]
    if stage.recipe >= 0:
        return [stage.recipe]
    if stage.recipe != EXIT:
        return []
    values = program.graph.values
    largest = sorted(stage.reads, key=lambda v: (-values[v].size_B, v))[:8]
    return [r for v in largest for r in program.graph.producers[v][:1]]
