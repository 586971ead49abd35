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
from lowtide.planners.chain.chain_costs import ChainCosts
from lowtide.planners.chain.links import Links, links_of
from lowtide.planners.reductions.stages import GapNumbers
from lowtide.planners.search import Search

MOST_LINKS = (160, 100)  # other cuts give other plans
SLOTS = 400
_LARGE = 4000  # stages: from there on one number of links is enough
_FINEST, _COARSEST = 4, 16  # slots between two plans that are mended
_SMALL = 0.003  # of the budget may go to values that are always kept because they are small
_REPAIRS = 60  # drops that mend one plan
_SHARE = 16  # at most the problem's work divided by this goes into mending
_CANDIDATES = 6  # values examined for each
_WIDER = 1.25  # how much larger the next budget is, where a table has no plan for one
_WIDEST, _WIDEST_BRIEFLY = 6, 2  # times that it is made larger


def chain_start(search: Search, most_links: Sequence[int] = MOST_LINKS, slots: int = SLOTS) -> Retention | None:
    """Offers plans of the chain and returns the one with the lowest peak.

    Arguments:
        most_links: into which the forward of each part is cut, one after another; large programs only the first.
        slots: in which the budget is counted.

    Returns: None where there is no chain, or the kernel refuses every plan.

    O(links^2 * slots * splits), and tens of simulations.
    """
    if search.is_brief:  # one number of links, coarser slots, fewer budgets
        most_links, slots = most_links[-1:], slots // 2
    elif len(search.program.stages) >= _LARGE:
        most_links = most_links[:1]
    candidates = [_chains(search, most) for most in most_links]
    candidates = [chains for chains in candidates if chains]
    if not candidates:
        return None
    walk = _Walk(search)
    budget_B, before_B = search.budget_B, None
    # Where tables have no plan, or poor ones: until a larger budget brings nothing lower.
    for _ in range(_WIDEST_BRIEFLY if search.is_brief else _WIDEST):
        for hopeful in (False, True):
            for chains in candidates:
                walk.take(_Tables.of(chains, budget_B, slots, hopeful))
            if search.time_ps is not None:
                return walk.lowest
        peak_B = walk.lowest_B
        if before_B is not None and peak_B is not None and peak_B >= before_B:
            break
        before_B = peak_B
        budget_B = int(budget_B * _WIDER)
    return walk.lowest


def _chains(search: Search, most_links: int) -> list[Links]:
    small_B = int(_SMALL * max(0, search.budget_B - search.program.core_fixed_B))
    return [links for links in links_of(search.program, most_links, small_B) if len(links.links) > 1]


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

    def retention(self, slots: int) -> GapNumbers:
        """The plans of all tables for a number of slots. A retention number beats KEEP, and no gap is in two chains."""
        parts = zip(self.chains, self.tables, strict=True)
        retention = (costs.retention(table, max(slots, table.least)) for costs, table in parts)
        together: NDArray[np.int32] = np.maximum.reduce(list(retention))
        return together


class _Walk:
    """Reads plans off tables, and remembers the lowest.

    Invariant: `lowest` is the one with the lowest peak of all that were possible; `mended` is the work of mending.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.lowest: Retention | None = None
        self.mended = 0

    @property
    def lowest_B(self) -> int | None:
        """The lowest peak."""
        return None if self.lowest is None else self.lowest.peak_B

    def take(self, tables: _Tables) -> None:
        """Tries the largest number of slots whose plan fits, and some beyond, mended greedily.

        The best that fits may be a mended one: the table takes some memory for scarcer than it is.
        """
        self.search.clock.tick()
        if tables.least is None:
            return
        least, most = tables.least, tables.most
        while least <= most:
            middle = (least + most) // 2
            if self._try(tables, middle, 0):
                least = middle + 1
            else:
                most = middle - 1
        step = min(_COARSEST, max(_FINEST, len(self.search.program.stages) // 150))
        for slots in range(max(least, tables.least), tables.most + 1, step):
            if self.search.clock.is_close() or self.mended > self.search.problem.work // _SHARE:
                return
            self._try(tables, slots, _REPAIRS)

    def _try(self, tables: _Tables, slots: int, repairs: int) -> bool:
        search = self.search
        state = search.program.keep_all(search.budget_B)
        search.work += 1
        if not state.assign(tables.retention(slots)):
            return False
        if not state.fits and repairs:
            kernel = Greedy(state, _CANDIDATES)
            kernel.run(repairs)
            search.work += kernel.tried
            self.mended += kernel.tried
        search.offer(state)
        if self.lowest is None or state.peak_B < self.lowest.peak_B:
            self.lowest = state
        search.clock.tick()
        return state.fits
