"""Re-optimisation by windows: cold annealing of one stretch of the step after another, from the incumbent.

On a large graph a proposal anywhere rarely meets another one nearby, so what takes several changes at one place is not
found. A window restricts proposals to gaps that begin or end in a stretch of stages. Stretches are drawn around stages
where much is run again, or where memory is short.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Retention
from lowtide.planners.local_search import anneal_once
from lowtide.planners.search import GAP, Search

ROUNDS = 24
_PARTS = (8, 20)  # a window is the step's stages divided by this, in turn
_TEMPERATURES = (0.5, 0.5, 3.0)  # in mean run times of a stage, in turn
_SHORTEST = 8  # stages of a window
_NEAR = 0.98  # of the budget: there memory is short
_SEEDS = 100_000  # keeps the seeds of windows apart from those of other coolings


def reoptimise(search: Search, work: int, seed: int, twins: NDArray[np.int32] | None = None) -> None:
    """Anneals window after window and offers what is better; does nothing without an incumbent.

    Arguments:
        work: proposals in all.
        seed: of the windows drawn and of their coolings.
        twins: as for `anneal_once`.

    O(work * change).
    """
    dice, left = random.Random(seed), work
    for number in range(ROUNDS):
        share = left // (ROUNDS - number)
        if share <= 0 or search.taus is None or search.gap <= GAP:
            return
        left -= share
        state = search.retention()
        temperature = _TEMPERATURES[number % len(_TEMPERATURES)]
        focus = [window(search, state, number, dice)]
        anneal_once(search, state, temperature, share, _SEEDS * (seed + 1) + number, twins=twins, focus=focus)


def window(search: Search, state: Retention, number: int, dice: random.Random) -> tuple[int, int]:
    """Draws a stretch of stages around one where much is run again, or where memory is short.

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
    """Per stage how much time its reruns take, and whether memory is short there; each in all as likely."""
    begin, reruns = state.reruns()
    times = np.array([s.rerun_ps for s in search.program.stages], dtype=np.float64)
    sums = np.concatenate([[0.0], np.cumsum(times[reruns])])
    spent = sums[begin[1:]] - sums[begin[:-1]]
    short = (state.live_B() >= _NEAR * search.budget_B).astype(np.float64)
    interest = spent / max(1.0, spent.sum()) + short / max(1.0, short.sum())
    return interest if interest.sum() > 0 else np.ones(len(interest))
