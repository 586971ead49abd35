"""What the classical methods share: where not everything fits, their plans are tried, and the best one is taken.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lowtide._core import Retention
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import Watch
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.search import Search, conduct


def follow(
    problem: Problem, watch: Watch | None, name: str, refusal: str | None, policy: Callable[[Search], None]
) -> Outcome:
    """Conducts a solve by a policy that knows little of budgets.

    Arguments:
        name: of the planner.
        refusal: as for `conduct`.
        policy: calls `attempt` for each of its plans; runs only where not everything fits.

    Returns: the fastest plan that fits; without one, `smallest_B` is the least budget that one of them meets.
    """

    def attempts(search: Search) -> None:
        search.smallest_B = search.stats["keep_all_peak_B"]
        policy(search)

    return conduct(problem, watch, name, refusal, beyond_keep_all((name, attempts)))


def attempt(search: Search, taus: NDArray[np.int32]) -> Retention | None:
    """Tries one plan: offers it, notes its peak, counts it as one unit of work.

    Returns: its state; None if its recomputations are impossible or too many.
    """
    search.work += 1
    state = search.program.keep_all(search.budget_B)
    possible = state.assign(taus)
    if possible:
        search.offer(state)
        note_peak(search, state.peak_B + search.program.reserve_B)
    search.clock.tick()
    return state if possible else None


def note_peak(search: Search, peak_B: int) -> None:
    """Notes a budget that some plan meets."""
    search.smallest_B = peak_B if search.smallest_B is None else min(search.smallest_B, peak_B)
