"""Two coolings at once, one per core: the kernel lets go of the interpreter while it searches.

The lanes take the same number of proposals between two meetings, so how they are sliced changes nothing: the first, by
number of proposals, that comes close enough to the bound ends both.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Annealer, Retention
from lowtide.planners.search import Search

_SLICE_S = 0.03  # aim of the time between two meetings
_COLD = 0.01  # last temperature as a fraction of the first
_MOST = 1 << 14  # proposals between two meetings


@dataclass(frozen=True)
class Lane:
    """One cooling.

    Arguments:
        taus: where it begins.
        temperature: the first, in mean run times of a recipe.
        seed: of its proposals.
        twins: per gap the class of those that play the same part in other layers, for mirrored moves; None for none.
        focus: first and last stages of stretches; proposals begin with gaps that begin or end in one of them.
    """

    taus: NDArray[np.int32]
    temperature: float
    seed: int
    twins: NDArray[np.int32] | None = None
    focus: tuple[tuple[int, int], ...] = ()


def anneal_lanes(search: Search, lanes: Sequence[Lane], work: int) -> None:
    """Runs the coolings side by side and offers what they find.

    Arguments:
        work: proposals of all together.
    """
    each = work // len(lanes)
    if each <= 0:
        return
    annealers = [_annealer(search, lane, each) for lane in lanes]
    before, step = search.work, 256
    best = search.program.keep_all(search.budget_B)
    try:
        with ThreadPoolExecutor(len(annealers), thread_name_prefix="lowtide-lane") as pool:
            over = False
            while not over:
                began_s = search.elapsed_s
                over = all(list(pool.map(Annealer.run, annealers, [step] * len(annealers))))  # both have to end
                took_s = search.elapsed_s - began_s
                step = max(64, min(_MOST, int(step * _SLICE_S / max(took_s, 1e-4)), 4 * step))
                search.work = before + sum(a.tried for a in annealers)
                close = [a for a in annealers if a.found and a.best_time_ps <= search.enough_ps]
                winners = [min(close, key=lambda a: a.tried)] if close else [a for a in annealers if a.found]
                for annealer in winners:
                    _take(search, annealer, best)
                search.tick()
                over = over or bool(close)
    finally:
        for annealer in annealers:
            search.stats["moves_tried"] = search.stats.get("moves_tried", 0) + annealer.tried
            search.stats["moves_accepted"] = search.stats.get("moves_accepted", 0) + annealer.accepted


def _annealer(search: Search, lane: Lane, moves: int) -> Annealer:
    state = search.program.keep_all(search.budget_B)
    if not state.assign(lane.taus):
        raise AssertionError("taus that were possible stay possible")
    end = lane.temperature * _COLD
    return Annealer(state, lane.seed, moves, lane.temperature, end, search.enough_ps, lane.twins, lane.focus)


def _take(search: Search, annealer: Annealer, best: Retention) -> None:
    if search.time_ps is not None and annealer.best_time_ps >= search.time_ps:
        return
    if best.assign(annealer.best_taus):
        search.offer(best)
