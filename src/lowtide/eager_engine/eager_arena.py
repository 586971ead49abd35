"""The arena of a program without a plan, which both runtimes use.

Units: `_B` bytes.
"""

from __future__ import annotations

from lowtide.device.arena import Arena

_PART = 128  # of the budget, at the very top, is for single numbers
_MOST_B = 64 * 1024


def arena_of(budget_B: int) -> Arena:
    """An arena of values, not a byte larger than the budget.

    Raises:
        ArenaError: if the system refuses the memory.
        ShimUnavailable: if there is no compiled module.
    """
    return Arena(budget_B, small_zone_B=min(_MOST_B, budget_B // _PART), home_B=0, values=True)
