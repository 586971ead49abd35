"""Where a search begins when it is given a schedule: at that schedule, made to fit if it does not.

Nothing here looks at the clock: a plan for a neighbouring shape is worth having even when no time is left to better it.
"""

from __future__ import annotations

from lowtide._core import Greedy as Kernel
from lowtide.ir.schedule import Schedule
from lowtide.planners.keep_all import find_floor
from lowtide.planners.reductions.begun import read_back
from lowtide.planners.search import Search

STAGE = "start"
_CANDIDATES = 6  # values that the descent examines exactly per step


def begin(search: Search, schedule: Schedule) -> None:
    """Offers a schedule that was made for other sizes; too large a one is first shrunk greedily.

    The floor is proved as well, since a plan always names its floor.

    Arguments:
        schedule: of a graph with the same ids.

    O(schedule), and where it has to be shrunk O(steps * candidates * change).
    """
    search.clock.stage = STAGE
    began_s = search.clock.elapsed_s
    find_floor(search)
    state = search.program.keep_all(search.budget_B)
    if not search.proved_impossible and state.assign(read_back(search.program, schedule)):
        if not state.fits:
            kernel = Kernel(state, _CANDIDATES)
            kernel.run(search.problem.work)
            search.work += kernel.tried
            search.stats["start_tried"] = kernel.tried
        search.offer(state)
    search.stats["start_s"] = search.clock.elapsed_s - began_s
