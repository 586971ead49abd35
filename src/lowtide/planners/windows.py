"""Windows: stretches of the step in which an annealing run looks for something better, one after another.

On a large graph a proposal anywhere rarely meets another one nearby, so what takes several changes at one place is not
found. A window restricts proposals to gaps that begin or end in a stretch of stages. Stretches are drawn around stages
where much is recomputed, or where memory is short.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Retention
from lowtide.planners.search import Search

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
