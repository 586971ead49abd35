"""Simulated annealing over what to keep in which gap, with exact incremental evaluation.

The moves and the rule are in `src/core/annealer.hpp`. `LocalSearch` runs several starts one after the other, each from
the incumbent, or from keep-all when there is none, at a temperature of its own.

**Lanes** are two searches at once, one per core: the kernel releases the interpreter's lock while it searches. A lane
is a sequence of annealing runs, each from the best that the lane has found. Lanes know nothing of each other and take
the same number of proposals between two meetings, so how they are sliced changes nothing: the first, by number of
proposals, that comes close enough to the bound ends both.

**Windows** are stretches of the step in which an annealing run looks for something better, one after another. On a
large graph a proposal anywhere rarely meets another one nearby, so what takes several changes at one place is not
found. A window restricts proposals to gaps that begin or end in a stretch of stages, drawn around stages where much is
recomputed, or where memory is short.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Annealer, Retention
from lowtide.planners.greedy import descend
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.reductions.stages import GapNumbers
from lowtide.planners.search import AbstractSearchPlanner, Search

_SLICE_s = 0.02  # aim of one call into the core
_COLD = 0.01  # last temperature as a fraction of the first


@final
@dataclass(frozen=True)
class LocalSearch(AbstractSearchPlanner):
    """Greedy start, then annealing.

    Arguments:
        temperatures: first temperatures of the starts, in mean run times of a recipe; low ones repair and polish, high
            ones find plans under tight budgets.
    """

    temperatures: tuple[float, ...] = (0.5, 3.0)
    name: ClassVar[str] = "local-search"

    def script(self, search: Search) -> None:
        """FEASIBLE or UNSOLVED, or what the floor and keep-all prove; its bound is the time of the first runs."""
        beyond_keep_all(search, ("greedy", descend), ("annealing", lambda s: anneal(s, self.temperatures)))


def anneal(search: Search, temperatures: tuple[float, ...]) -> None:
    """Spends what is left of the work on annealing, split over the temperatures; stops early when close enough."""
    for number, temperature in enumerate(temperatures):
        work = (search.problem.work - search.work) // (len(temperatures) - number)
        if work <= 0 or search.clock.is_close():
            return
        anneal_once(search, search.state(), temperature, work, search.problem.seed * 1000 + number)


def anneal_once(
    search: Search, state: Retention, temperature: float, work: int, seed: int, enough_ps: int | None = None
) -> Annealer:
    """One annealing run from `temperature`; offers the best that fits.

    Arguments:
        enough_ps: stop at a plan that takes no longer; close enough to the bound if None.

    Returns: the finished annealer; `state` is left wherever it ended.
    """
    enough = search.enough_ps if enough_ps is None else enough_ps
    annealer = Annealer(state, seed, work, temperature, temperature * _COLD, enough)
    before, done, step = search.work, False, 256
    best = search.program.keep_all(search.budget_B)
    try:
        while not done:
            began_s = search.clock.elapsed_s
            done = annealer.run(step)
            took_s = search.clock.elapsed_s - began_s
            # How the proposals are sliced changes nothing but how soon a limit or Ctrl-C is noticed.
            step = max(64, min(8192, int(step * _SLICE_s / max(took_s, 1e-4)), 4 * step))
            search.work = before + annealer.tried
            if annealer.found and (search.time_ps is None or annealer.best_time_ps < search.time_ps):
                _take(search, annealer, best)
            search.clock.tick()
    finally:
        search.stats["moves_tried"] = search.stats.get("moves_tried", 0) + annealer.tried
        search.stats["moves_accepted"] = search.stats.get("moves_accepted", 0) + annealer.accepted
    return annealer


def _take(search: Search, annealer: Annealer, best: Retention) -> None:
    if best.assign(annealer.best_taus):
        search.offer(best)


_MEETING_s = 0.03  # aim of the time between two meetings
_MOST = 1 << 14  # proposals between two meetings


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
        retention: the retention at which it begins.
        annealing_runs: in order; they share the lane's proposals evenly.
        seed: of its proposals.
    """

    retention: GapNumbers
    annealing_runs: tuple[AnnealingRun, ...]
    seed: int


def anneal_lanes(search: Search, lanes: Sequence[Lane], work: int, twins: GapNumbers | None = None) -> None:
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
                step = max(64, min(_MOST, int(step * _MEETING_s / max(took_s, 1e-4)), 4 * step))
                close = [r for r in runs if r.is_close]
                ending = [min(close, key=lambda r: r.tried)] if close else runs
                # What a lane tried beyond the end of both depends on the slices, and does not count.
                most = max(r.tried for r in ending)
                search.work = before + sum(min(r.tried, most) for r in runs)
                for run in ending:
                    _take_run(search, run)
                over = over or bool(close)
                search.clock.tick()
    finally:
        search.stats["moves_tried"] = search.stats.get("moves_tried", 0) + search.work - before


def _take_run(search: Search, run: _Run) -> None:
    if run.retention is not None and (search.time_ps is None or run.time_ps < search.time_ps):
        state = search.program.keep_all(search.budget_B)
        if state.assign(run.retention):
            search.offer(state)


class _Run:
    """A lane in progress. It only reads of the search what no lane changes.

    Invariant: `retention`, if any, fit the budget and take `time_ps`, the least that the lane has found.
    """

    def __init__(self, search: Search, lane: Lane, moves: int, twins: GapNumbers | None) -> None:
        self.search, self.lane, self.twins = search, lane, twins
        self.enough_ps = search.enough_ps
        self.left = moves
        self.tried = 0
        self.retention: GapNumbers | None = None
        self.time_ps = 0
        self.number = 0
        self.begin_at = lane.retention
        self.dice = random.Random(lane.seed)
        self.annealer: Annealer | None = None

    @property
    def is_close(self) -> bool:
        """Whether the lane's best is close enough to the bound."""
        return self.retention is not None and self.time_ps <= self.enough_ps

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
            if self.annealer.found and (self.retention is None or self.annealer.best_time_ps < self.time_ps):
                self.retention, self.time_ps = self.annealer.best_taus, self.annealer.best_time_ps
            if done:
                self.begin_at = self.annealer.lowest_taus if self.retention is None else self.retention
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


_PARTS = (8, 20)  # a window is the step's stages divided by this, in turn
_SHORTEST = 8  # stages of a window
_NEAR = 0.98  # of the budget: there memory is short


def window(search: Search, state: Retention, number: int, dice: random.Random) -> tuple[int, int]:
    """Draws a stretch of stages around one where much is recomputed, or where memory is short.

    Arguments:
        number: of the window; widths take turns.

    Returns: its first and last stage.
    """
    stages = len(search.program.stages)
    width = max(_SHORTEST, stages // _PARTS[number % len(_PARTS)])
    (middle,) = dice.choices(range(stages), weights=_interest(search, state).tolist())
    first = min(max(0, middle - width // 2), max(0, stages - width))
    return first, min(stages, first + width) - 1


def _interest(search: Search, state: Retention) -> NDArray[Any]:
    """Per stage how much time its recomputations take, and whether memory is short there; each in all as likely."""
    begin, recomputations = state.recomputations()
    fetches = [0] * len(search.program.values)  # what comes by fetch stands behind the stages
    times = np.array([*(s.recompute_ps for s in search.program.stages), *fetches], dtype=np.float64)
    sums = np.concatenate([[0.0], np.cumsum(times[recomputations])])
    spent = sums[begin[1:]] - sums[begin[:-1]]
    short = (state.live_B() >= _NEAR * search.budget_B).astype(np.float64)
    interest = spent / max(1.0, spent.sum()) + short / max(1.0, short.sum())
    return interest if interest.sum() > 0 else np.ones(len(interest))
