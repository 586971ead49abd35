"""Drops what pays best at the highest peak, again and again, until the budget is met.

The steps are in `src/core/greedy.hpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Greedy as Kernel
from lowtide._core import Retention
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.search import AbstractSearchPlanner, Search

_CANDIDATES = 6
_SLICE = 4  # committed steps between two looks at the clock


@final
@dataclass(frozen=True)
class Greedy(AbstractSearchPlanner):
    """Greedy descent from keep-all.

    Arguments:
        candidates: values examined exactly per step.
    """

    candidates: int = _CANDIDATES
    name: ClassVar[str] = "greedy"

    def script(self, search: Search) -> None:
        """FEASIBLE, or OPTIMAL when nothing had to be dropped; its bound is the time of the first runs."""
        beyond_keep_all(search, ("greedy", lambda s: descend(s, self.candidates)))


def descend(search: Search, candidates: int = _CANDIDATES) -> None:
    """Descends from keep-all towards the budget and offers the result. O(steps * candidates * change)."""
    state = search.program.keep_all(search.budget_B)
    kernel = Kernel(state, candidates)
    before = search.work
    done = False
    while not done and search.work < search.problem.work:
        done = kernel.run(_SLICE)
        search.work = before + kernel.tried
        search.clock.tick()
    search.stats["greedy_tried"] = kernel.tried
    search.stats["greedy_peak_B"] = state.peak_B
    search.lowest_retention = state.taus
    search.offer(state)


def mend(search: Search, state: Retention, steps: int = 60) -> bool:
    """Offers a retention; one that takes a little too much goes down by a few drops first.

    Arguments:
        steps: drops at most.

    Returns: whether it fits now. O(steps * candidates * change).
    """
    if not state.fits:
        kernel = Kernel(state, _CANDIDATES)
        kernel.run(steps)
        search.work += kernel.tried
    search.offer(state)
    return state.fits
