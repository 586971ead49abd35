"""Cuts where they are needed: each replay that does not fit says where the next cut belongs.

The bound of several cuts is the strongest that there is under tight budgets, and its replays are where a search begins.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from threading import Event
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Retention
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.bounds.highs import Effort
from lowtide.planners.bounds.multi_cut import MultiCut
from lowtide.planners.bounds.rows import PS_PER_MS
from lowtide.planners.greedy import mend
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.reductions.stages import StageProgram, refuses_stages
from lowtide.planners.search import Search, conduct

_CLOSE = 1e-3  # as a fraction of the step


@dataclass(frozen=True)
class CutLimits:
    """How far to go; the result does not depend on the machine's speed unless `until_s` strikes.

    Arguments:
        cuts: at most.
        columns: of the largest model.
        nodes: of each solver's tree; where they do not suffice, no cut is added.
        idle: further cuts without a better bound.
        until_s: by the monotonic clock; None for no limit.
        stop: set by another thread.
    """

    cuts: int = 10
    columns: int = 1300
    nodes: int = 10
    idle: int = 3
    until_s: float | None = None
    stop: Event | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds until the limit."""
        return None if self.until_s is None else self.until_s - time.monotonic()

    @property
    def struck(self) -> bool:
        """Whether there is no more time."""
        left_s = self.left_s
        return (left_s is not None and left_s <= 0) or (self.stop is not None and self.stop.is_set())


@dataclass(frozen=True)
class CutsFound:
    """What some cuts came to.

    Arguments:
        bound_ps: proved: no schedule spends less on recomputations.
        impossible: proved: no schedule of the class fits.
        replays: retentions, of more and more cuts.
        solves: how many.
    """

    bound_ps: float
    impossible: bool
    replays: tuple[NDArray[np.int32], ...]
    solves: int


@final
@dataclass(frozen=True)
class MultiCutReplay(AbstractPlanner):
    """Cuts at the peak of keep-all, then at the peaks of its own replays.

    Arguments:
        limits: how far to go.
    """

    limits: CutLimits = CutLimits()
    name: ClassVar[str] = "multi-cut"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """OPTIMAL when a replay costs what the bound says, else FEASIBLE or UNSOLVED; rarely a plan of its own."""
        script = beyond_keep_all(("multi_cut", self._cut))
        return conduct(problem, watch, self.name, self.refuses(problem), script)

    def _cut(self, search: Search) -> None:
        limits = replace(self.limits, until_s=search.until_s)
        take(search, find_cuts(search.program, search.problem.budget_B, search.budget_B, limits))


def find_cuts(program: StageProgram, budget_B: int, free_B: int, limits: CutLimits) -> CutsFound:
    """Adds one cut after another. Touches nothing but its own values, so that it may run concurrently with a search.

    Arguments:
        budget_B: for the bound.
        free_B: for the replays: the budget less what is set aside.
    """
    state = program.keep_all(free_B)
    stages = [state.peak_stage]
    best_ps, idle, solves = 0.0, 0, 0
    replays: list[NDArray[np.int32]] = []
    while not limits.struck:
        model = MultiCut(program, stages, budget_B)
        if solves and model.columns > limits.columns:
            break
        close_ms = _CLOSE * program.time_ps / PS_PER_MS
        solution = model.solve(Effort(close_ms, limits.nodes, limits.left_s, limits.stop))
        solves += 1
        idle = 0 if solution.bound_ps > best_ps * 1.002 else idle + 1
        best_ps = max(best_ps, solution.bound_ps)
        if solution.impossible:
            return CutsFound(best_ps, True, tuple(replays), solves)
        state = program.keep_all(free_B)
        if solution.kept is not None:
            taus = model.taus(solution)
            if state.assign(taus):
                replays.append(taus)
        stage = _next_stage(state, stages)
        if state.fits or stage is None or idle >= limits.idle or len(stages) >= limits.cuts or not solution.whole:
            break
        stages = sorted((*stages, stage))
    return CutsFound(best_ps, False, tuple(replays), solves)


def take(search: Search, found: CutsFound) -> list[NDArray[np.int32]]:
    """Notes what cuts prove and offers their replays.

    Returns: the replays, the lowest peak first.
    """
    search.prove(search.program.time_ps + found.bound_ps)
    search.stats["cut_solves"] = search.stats.get("cut_solves", 0) + found.solves
    search.proved_impossible = search.proved_impossible or found.impossible
    ranked: list[tuple[int, int]] = []
    for number, taus in enumerate(found.replays):
        state = search.program.keep_all(search.budget_B)
        if state.assign(taus):
            ranked.append((state.peak_B, number))
            mend(search, state)
    return [found.replays[number] for _, number in sorted(ranked)]


def _next_stage(state: Retention, stages: list[int]) -> int | None:
    """Where the replay takes most bytes, the cuts aside."""
    live_B = state.live_B().copy()
    live_B[stages] = 0
    stage = int(live_B.argmax())
    return stage if live_B[stage] > 0 else None
