"""A start for tight budgets: dynamic programming over the links of the forward, with several options per link.

The table (`src/core/chain_table.hpp`) knows memory as slots and sums; what its plans really take is found by exact
simulation. So plans are read off for several numbers of slots, and the largest number whose plan fits is found by
bisection, as in rotor (arXiv 1911.13214). Plans that are a little too large are mended greedily. A bundle has one
chain per part; they share the number of slots.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide._core import ChainTable, Greedy, Retention
from lowtide.planners.chain_costs import ChainCosts
from lowtide.planners.reductions.links import Links, links_of
from lowtide.planners.search import Search

MOST_LINKS = 160
SLOTS = 400
_BEYOND_STEPS = 40
_SMALL = 0.003  # of the budget may go to values that are always kept because they are small
_REPAIRS = 60  # drops that mend one plan
_CANDIDATES = 6  # values examined for each
_WIDER = 1.25  # how much larger the next budget is, where a table has no plan for one
_WIDEST = 6  # times that it is made larger


def chain_start(search: Search, most_links: int = MOST_LINKS, slots: int = SLOTS) -> Retention | None:
    """Offers plans of the chain and returns the one with the lowest peak.

    Arguments:
        most_links: into which the forward of each part is cut.
        slots: in which the budget is counted.

    Returns: None where there is no chain, or the kernel refuses every plan.

    O(links^2 * slots * splits), and about twenty simulations.
    """
    small_B = int(_SMALL * max(0, search.budget_B - search.program.core_fixed_B))
    chains = [links for links in links_of(search.program, most_links, small_B) if len(links.links) > 1]
    if not chains:
        return None
    walk = _Walk(search)
    budget_B = search.budget_B
    for _ in range(_WIDEST):
        for hopeful in (False, True):
            walk.take(_Tables.of(chains, budget_B, slots, hopeful))
            if search.time_ps is not None:
                return walk.lowest
        if walk.lowest is not None:
            break
        budget_B = int(budget_B * _WIDER)
    return walk.lowest


@dataclass(frozen=True)
class _Tables:
    """One chain and one table per part."""

    chains: Sequence[ChainCosts]
    tables: Sequence[ChainTable]

    @classmethod
    def of(cls, chains: Sequence[Links], budget_B: int, slots: int, hopeful: bool) -> _Tables:
        """Fills the tables."""
        again = frozenset[int]().union(*(links.again for links in chains))
        costs = [ChainCosts(links, budget_B, slots, hopeful, again - links.again) for links in chains]
        return cls(costs, [c.table() for c in costs])

    @property
    def least(self) -> int | None:
        """The fewest slots for which some table has a plan; None unless each has plans."""
        least = [table.least for table in self.tables]
        return None if min(least) < 0 else min(least)

    @property
    def most(self) -> int:
        """Slots of each table."""
        return max(costs.slots for costs in self.chains)

    def taus(self, slots: int) -> NDArray[np.int32]:
        """The plans of all tables for a number of slots. A tau beats KEEP, and no gap is in two chains."""
        parts = zip(self.chains, self.tables, strict=True)
        taus = (costs.taus(table, max(slots, table.least)) for costs, table in parts)
        together: NDArray[np.int32] = np.maximum.reduce(list(taus))
        return together


class _Walk:
    """Reads plans off tables, and remembers the lowest.

    Invariant: `lowest` is the one with the lowest peak of all that were possible.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.lowest: Retention | None = None

    def take(self, tables: _Tables) -> None:
        """Tries the largest number of slots whose plan fits, and some beyond, mended greedily.

        The best that fits may be a mended one: the table takes some memory for scarcer than it is.
        """
        self.search.tick()
        if tables.least is None:
            return
        least, most = tables.least, tables.most
        while least <= most:
            middle = (least + most) // 2
            if self._try(tables, middle, 0):
                least = middle + 1
            else:
                most = middle - 1
        for slots in range(max(least, tables.least), tables.most + 1, max(1, tables.most // _BEYOND_STEPS)):
            self._try(tables, slots, _REPAIRS)

    def _try(self, tables: _Tables, slots: int, repairs: int) -> bool:
        search = self.search
        state = search.program.keep_all(search.budget_B)
        search.work += 1
        if not state.assign(tables.taus(slots)):
            return False
        if not state.fits and repairs:
            kernel = Greedy(state, _CANDIDATES)
            kernel.run(repairs)
            search.work += kernel.tried
        search.offer(state)
        if self.lowest is None or state.peak_B < self.lowest.peak_B:
            self.lowest = state
        search.tick()
        return state.fits
