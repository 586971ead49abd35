"""Cuts of steps that may offload values, and what is made of them.

A cut where the step is fullest says what is kept, what is sent before and fetched afterwards, and what is host-resident
(`bounds/offload_cut.py`). Its solution is replayed: what is not kept across the cut point is recomputed or fetched when
it is needed. Only what the cut offloads may be offloaded in the search that follows, at no price. Where copies come
late after all, the cut is solved again for slower links; where the replay is too full elsewhere, there is the next cut,
and both are replayed together.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from lowtide._core import Retention
from lowtide.ir.graph import Graph
from lowtide.ir.machine import Machine
from lowtide.planners.annealing import AnnealingRun, Lane, anneal_lanes
from lowtide.planners.bounds.cut_model import CutModel, CutSolution, offload_cut
from lowtide.planners.bounds.milp import PS_PER_MS, Effort
from lowtide.planners.greedy import mend
from lowtide.planners.implementations.choice import fixes_choices
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.offload.offload_search import OffloadCandidate, OffloadSearch
from lowtide.planners.offload.transfers import Timing
from lowtide.planners.reductions.stages import GapNumbers, StageProgram
from lowtide.planners.reductions.twins import twin_gaps

_CUT_POINTS = 3  # at which a graph is cut
_SLOWER = (1.0, 0.85, 0.7)  # times the link's rate, for cuts whose copies come late
_THOROUGH = 50_000  # proposals: with less work one cut has to do
_CLOSE, _NODES = 2e-3, 3  # of a cut: as a fraction of the step, and of the tree
_ANNEALING_RUNS = (AnnealingRun(0.5), AnnealingRun(0.5, windowed=True, mirrored=True))
_ANNEAL_SHARE = 0.08  # of the work, for each replay
_LATE = 1e-3  # as a fraction of the step: waits that are worth another cut
_DROPS = 400  # drops that leave space for copies in progress
_WIDE = 0.5  # of a second of the link, in seconds of compute, where everything may be offloaded


@dataclass(frozen=True)
class Cut:
    """The cut model at a stage of a program, and a solution."""

    program: StageProgram
    stage: int
    model: CutModel
    solution: CutSolution

    @property
    def gone(self) -> dict[int, bool]:
        """What is not kept, by its id in the graph, and whether it comes back by a fetch."""
        there, kept = self.program.values, frozenset() if self.solution.kept is None else self.solution.kept[0]
        return {there[v]: v in self.solution.fetched for v in self.model.scenes[0].values if v not in kept}


def cut_and_move(pool: OffloadSearch, graph: Graph, program: StageProgram) -> None:
    """Cuts where the program is fullest, and where its replays are, and goes on from there.

    Arguments:
        program: of the graph, in which nothing is offloaded.
    """
    earlier: list[Cut] = []
    stages, stage = list[int](), program.keep_all(0).peak_stage
    most = _CUT_POINTS if pool.problem.work >= _THOROUGH else 1
    while 0 <= stage not in stages and len(stages) < most and not pool.clock.is_close():
        stages.append(stage)
        stage = pool.clock.run("cut", partial(_cut, pool, graph, program, stage, earlier))


def prove(pool: OffloadSearch) -> None:
    """Proves a bound where the graph's own program is fullest, without a replay; nothing where there are choices."""
    if fixes_choices(pool.graph):
        return
    program, problem = pool.still, pool.problem
    model = offload_cut(program, program.keep_all(0).peak_stage, pool.machine, problem.host_budget_B)
    bound_ps = model.solve(problem.budget_B, effort_for(pool, program)).bound_ps
    pool.clock.prove(max(0.0, bound_ps - len(program.stages)))


def effort_for(pool: OffloadSearch, program: StageProgram) -> Effort:
    """How exactly a cut is solved."""
    return Effort(_CLOSE * program.time_ps / PS_PER_MS, _NODES, pool.clock.left_s)


def _cut(pool: OffloadSearch, graph: Graph, program: StageProgram, stage: int, earlier: list[Cut]) -> int:
    """Cuts at a stage; returns where the last replay was too full, or -1. Adds the cut to the earlier ones."""
    fuller, before = -1, tuple(earlier)
    for slower in _SLOWER if pool.problem.work >= _THOROUGH else _SLOWER[:1]:
        model = offload_cut(program, stage, _slowed(pool.machine, slower), pool.problem.host_budget_B)
        cut = Cut(program, stage, model, model.solve(pool.problem.budget_B, effort_for(pool, program)))
        pool.stats["cuts"] = pool.stats.get("cuts", 0) + 1
        if slower == 1.0 and not fixes_choices(pool.graph):
            pool.clock.prove(max(0.0, cut.solution.bound_ps - len(program.stages)))
        if cut.solution.kept is None:
            return fuller
        if slower == 1.0:
            earlier.append(cut)
        timed = None
        for together in ((cut,), (*before, cut)) if before else ((cut,),):
            candidate, retention = _replay(pool, graph, together)
            state = candidate.program.keep_all(pool.problem.budget_B - candidate.program.reserve_B)
            if state.assign(retention) and not state.fits:
                fuller = state.peak_stage
            timed = _go_on(pool, graph, candidate, retention) or timed
            if pool.clock.is_close():
                return fuller
        if timed is not None and timed.stall_s <= _LATE * timed.time_s:
            break
    return fuller


def _go_on(pool: OffloadSearch, graph: Graph, candidate: OffloadCandidate, retention: GapNumbers) -> Timing | None:
    """Makes a replay fit, times it, and anneals it."""
    found = pool.settle(candidate, retention)
    if found is None:
        candidate, found = _wider(pool, graph, candidate, retention)
    if found is None:
        return None
    timed = pool.consider(candidate, found)
    if not pool.clock.is_close():
        timed = anneal_candidate(pool, candidate, found.taus) or timed
    pool.clock.tick()
    return timed


def _slowed(machine: Machine, factor: float) -> Machine:
    return replace(machine, links=tuple(replace(link, rate_Bps=link.rate_Bps * factor) for link in machine.links))


def _replay(pool: OffloadSearch, graph: Graph, cuts: Sequence[Cut]) -> tuple[OffloadCandidate, GapNumbers]:
    """What the solutions of some cuts mean together."""
    fetched = {v for cut in cuts for v, by_fetch in cut.gone.items() if by_fetch}
    candidate = pool.candidate(graph, {v for cut in cuts for v in cut.solution.hosted}, fetched)
    program = candidate.program
    retention = program.keep_all(0).taus
    for cut in cuts:
        gone, stage = cut.gone, _same_stage(cut.program, cut.stage, program)
        for i, v in enumerate(program.values):
            if v not in gone or program.producer[i] >= stage:
                continue
            gap = program.core.gap_at(i, stage)
            if not program.core.is_free(gap):
                continue
            since = program.core.gap_start(gap) + 1
            if program.core.can_fetch(gap) and (gone[v] or not program.core.can_recompute(gap)):
                retention[gap] = ~since
            elif program.core.can_recompute(gap):
                retention[gap] = since
    return candidate, retention


def _same_stage(program: StageProgram, stage: int, other: StageProgram) -> int:
    """Where another program, of the same graph with other values host-resident, has a stage."""
    sought = (program.stages[stage].segment, program.stages[stage].recipe)
    return next((t for t, s in enumerate(other.stages) if (s.segment, s.recipe) == sought), stage)


def _wider(
    pool: OffloadSearch, graph: Graph, candidate: OffloadCandidate, retention: GapNumbers
) -> tuple[OffloadCandidate, Retention | None]:
    """The same start where everything may be offloaded: of use where a few values are not enough."""
    wide = pool.candidate(
        graph, candidate.hosted, fetchable_values(graph, pool.least_B) | candidate.program.movement.fetchable
    )
    wide.price(pool.machine, _WIDE)
    return wide, pool.settle(wide, retention)


def anneal_candidate(
    pool: OffloadSearch, candidate: OffloadCandidate, retention: GapNumbers, share: float = 1.0
) -> Timing | None:
    """Anneals an offload candidate from a plan of it.

    Arguments:
        share: of the budget that values may take; what is left is for copies in progress.
    """
    search = pool.search(candidate, int(_ANNEAL_SHARE * pool.problem.work))
    search.budget_B = int(share * pool.problem.budget_B) - candidate.program.reserve_B
    search.clock.stage = pool.clock.stage
    search.clock.prove(pool.clock.bound_ps)
    if share < 1.0:
        state = candidate.program.keep_all(search.budget_B)
        if state.assign(retention) and mend(search, state, _DROPS):
            retention = state.taus
    lane = Lane(retention, _ANNEALING_RUNS, pool.problem.seed)
    try:
        anneal_lanes(
            search, [lane], min(search.problem.work, 4000 * len(candidate.program.stages)), twin_gaps(candidate.program)
        )
    finally:
        pool.work += search.work
    if search.retention is None:
        return None
    found = pool.settle(candidate, search.retention)
    return None if found is None else pool.consider(candidate, found)
