"""Two searches at once, one per core: the kernel releases the interpreter's lock while it searches.

A lane is a sequence of annealing runs, each from the best that the lane has found. Lanes know nothing of each other and
take the same number of proposals between two meetings, so how they are sliced changes nothing: the first, by number of
proposals, that comes close enough to the bound ends both.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Annealer
from lowtide.planners.search import Search
from lowtide.planners.windows import window

_SLICE_S = 0.03  # aim of the time between two meetings
_COLD = 0.01  # last temperature as a fraction of the first
_MOST = 1 << 14  # proposals between two meetings

Taus = NDArray[np.int32]


@dataclass(frozen=True)
class AnnealingRun:
    """One annealing run of a lane.

    Arguments:
        temperature: the first, in mean run times of a recipe.
        windowed: whether proposals begin in one stretch of stages, drawn where memory is short or much is recomputed.
        mirrored: whether moves are tried in like layers as well.
    """

    temperature: float
    windowed: bool = False
    mirrored: bool = False


@dataclass(frozen=True)
class Lane:
    """What one core does.

    Arguments:
        taus: the retention at which it begins.
        annealing_runs: in order; they share the lane's proposals evenly.
        seed: of its proposals.
    """

    taus: Taus
    annealing_runs: tuple[AnnealingRun, ...]
    seed: int


def anneal_lanes(search: Search, lanes: Sequence[Lane], work: int, twins: Taus | None = None) -> None:
    """Runs the lanes concurrently and offers what they find.

    Arguments:
        work: proposals of all together.
        twins: per gap the class of those that play the same part in other layers, for mirrored moves.
    """
    runs = [_Run(search, lane, work // len(lanes), twins) for lane in lanes]
    before, step = search.work, 256
    try:
        with ThreadPoolExecutor(len(runs), thread_name_prefix="lowtide-lane") as pool:
            over = work < len(lanes)
            while not over:
                began_s = search.clock.elapsed_s
                over = all(list(pool.map(_Run.run, runs, [step] * len(runs))))  # both have to end before anything else
                took_s = search.clock.elapsed_s - began_s
                step = max(64, min(_MOST, int(step * _SLICE_S / max(took_s, 1e-4)), 4 * step))
                close = [r for r in runs if r.is_close]
                ending = [min(close, key=lambda r: r.tried)] if close else runs
                # What a lane tried beyond the end of both depends on the slices, and does not count.
                most = max(r.tried for r in ending)
                search.work = before + sum(min(r.tried, most) for r in runs)
                for run in ending:
                    _take(search, run)
                over = over or bool(close)
                search.clock.tick()
    finally:
        search.stats["moves_tried"] = search.stats.get("moves_tried", 0) + search.work - before


def _take(search: Search, run: _Run) -> None:
    if run.taus is not None and (search.time_ps is None or run.time_ps < search.time_ps):
        state = search.program.keep_all(search.budget_B)
        if state.assign(run.taus):
            search.offer(state)


class _Run:
    """A lane in progress. It only reads of the search what no lane changes.

    Invariant: `taus`, if any, fit the budget and take `time_ps`, the least that the lane has found.
    """

    def __init__(self, search: Search, lane: Lane, moves: int, twins: Taus | None) -> None:
        self.search, self.lane, self.twins = search, lane, twins
        self.enough_ps = search.enough_ps
        self.left = moves
        self.tried = 0
        self.taus: Taus | None = None
        self.time_ps = 0
        self.number = 0
        self.begin_at = lane.taus
        self.dice = random.Random(lane.seed)
        self.annealer: Annealer | None = None

    @property
    def is_close(self) -> bool:
        """Whether the lane's best is close enough to the bound."""
        return self.taus is not None and self.time_ps <= self.enough_ps

    def run(self, moves: int) -> bool:
        """So many proposals more; whether the lane is over."""
        while moves > 0 and not self.is_close:
            if self.annealer is None and not self._next():
                return True
            assert self.annealer is not None
            before = self.annealer.tried
            done = self.annealer.run(moves)
            moves -= self.annealer.tried - before
            self.tried += self.annealer.tried - before
            if self.annealer.found and (self.taus is None or self.annealer.best_time_ps < self.time_ps):
                self.taus, self.time_ps = self.annealer.best_taus, self.annealer.best_time_ps
            if done:
                self.begin_at = self.annealer.lowest_taus if self.taus is None else self.taus
                self.annealer = None
        return self.is_close

    def _next(self) -> bool:
        """Begins the next annealing run; False if there is none."""
        annealing_runs = self.lane.annealing_runs
        share = self.left // max(1, len(annealing_runs) - self.number)
        if self.number == len(annealing_runs) or share < 1:
            return False
        annealing_run = annealing_runs[self.number]
        state = self.search.program.keep_all(self.search.budget_B)
        if not state.assign(self.begin_at):
            raise AssertionError("a retention that was possible stays possible")
        focus = [window(self.search, state, self.number, self.dice)] if annealing_run.windowed else []
        self.annealer = Annealer(
            state,
            self.lane.seed * 100 + self.number,
            share,
            annealing_run.temperature,
            annealing_run.temperature * _COLD,
            self.enough_ps,
            self.twins if annealing_run.mirrored else None,
            focus,
        )
        self.left -= share
        self.number += 1
        return True
