"""Two extremes: nothing runs twice, so that copies have to do it all; and everything is away whenever it is not used.

**Nothing twice**: a graph of what copies alone can do, and how long they take at the least.

**Everything away**: the retention for the fewest bytes. What a run overwrites is gone in every memory. Where the
fullest stage could overwrite a value that is fetched once more behind it, that value is recomputed there instead, as
long as this lowers the peak.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.machine import Machine
from lowtide.planners.offload.movement import Rates
from lowtide.planners.reductions.program import needed_program
from lowtide.planners.reductions.stages import GapNumbers, StageProgram, stage_program


def least_away(program: StageProgram) -> GapNumbers:
    """Everything away, and in place where that is fuller. O(stages) retentions are tried, mostly few."""
    state = program.keep_all(0)
    retention = retention_away(program)
    if not state.assign(retention):
        return retention
    peak_B, stage = state.peak_B, state.peak_stage
    tried: set[tuple[int, int]] = set()
    while True:
        candidates = [(stage, v) for v in program.takeover_ids[stage] if (stage, v) not in tried]
        if not candidates:
            return retention
        tried.add(candidates[0])
        other = _recomputed(program, retention, candidates[0][1], stage)
        if other is not None and state.assign(other) and state.peak_B <= peak_B:
            retention, peak_B, stage = other, state.peak_B, state.peak_stage


def retention_away(program: StageProgram) -> GapNumbers:
    """Everything that may come by fetch does so for every need. O(gaps)."""
    core, retention = program.core, program.keep_all(0).taus
    for gap in range(len(retention)):
        if core.is_free(gap) and core.can_fetch(gap):
            retention[gap] = ~(core.gap_start(gap) + 1)
    return retention


def _recomputed(program: StageProgram, retention: GapNumbers, value: int, stage: int) -> GapNumbers | None:
    """The same with a value recomputed, not fetched, behind a stage; None where that cannot be, or is so."""
    core = program.core
    first = sum(len(uses) + 1 for uses in program.uses[:value])
    gaps = [
        g
        for g in range(first, first + len(program.uses[value]) + 1)
        if core.gap_start(g) >= stage and retention[g] < -1
    ]
    if not gaps or not all(core.can_recompute(g) for g in gaps):
        return None
    found = retention.copy()
    found[gaps] = ~found[gaps]
    return found


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
