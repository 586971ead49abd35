"""Where a search begins when it is given a schedule: at that schedule, made to fit if it does not.

The schedule is read back as a retention, the inverse of `StageProgram.lift`. It may have been made for other sizes.
What a retention cannot say (another order of first runs, when copies are on their way) is not read, nor fetches of what
the program does not offload; what comes out is legal whatever went in, and gives the same schedule where it came from
`lift`.

Nothing here looks at the clock: a plan for a neighbouring shape is worth having even when no time is left to better it.
"""

from __future__ import annotations

from lowtide._core import Greedy as Kernel
from lowtide.ir.graph import Effect
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule
from lowtide.planners.keep_all import find_floor
from lowtide.planners.reductions.stage import ENTRY
from lowtide.planners.reductions.stages import GapNumbers, StageProgram
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


def read_back(program: StageProgram, schedule: Schedule) -> GapNumbers:
    """Finds the retention with which the program drops and keeps as the schedule does.

    A value that is gone at the end of a stage that touched it (made it, recomputed it, or used it) is dropped there:
    the gap's number lies just behind the last such stage. If a fetch comes next in the gap, that restores it.

    Arguments:
        schedule: of a graph with the same ids.

    Returns: one number per gap. O(steps + reads).
    """
    core = program.core
    retention: GapNumbers = program.keep_all(0).taus
    walk = _Walk(program)
    touched_and_gone = walk.run(schedule)[:-1]
    fetches = {core.gap_at(value, stage) for value, stage in walk.fetches}
    for stage, gone in enumerate(touched_and_gone):
        for value in gone:
            gap = core.gap_at(value, stage + 1)
            if core.is_free(gap):
                fetched = core.can_fetch(gap) and (gap in fetches or not core.can_recompute(gap))
                retention[gap] = ~(stage + 1) if fetched else stage + 1
    return retention


class _Walk:
    """Goes through a schedule, stage by stage.

    Invariant: `live` holds the values that the device holds after the last step, by their place in the program; the own
    run of stage `at` came last, and recomputations and fetches since belong to the stage after it.
    """

    def __init__(self, program: StageProgram) -> None:
        self.stages = program.stages
        self.number = {v: i for i, v in enumerate(program.values)}
        self.live: set[int] = set()
        self.touched = [set(reads) for reads in program.read_ids]
        self.gone: list[set[int]] = []
        self.fetches: list[tuple[int, int]] = []  # value, and the stage before which it comes
        self.hosted = {self.number[v] for v in program.movement.hosted}
        self.at = -1
        self.entry_of = {s.segment: t for t, s in enumerate(program.stages) if s.recipe == ENTRY}
        self.graph = program.graph
        self.stage_of = {s.recipe: t for t, s in enumerate(program.stages) if s.recipe >= 0}
        self.stage_of |= {candidate: t for t, s in enumerate(program.stages) for _, candidate in s.takeovers}
        self.stage_of |= {s.recipe: self.stage_of[r] for r, s in program.shortcuts.items()}
        random = {replay.state: recipe for recipe, replay in program.replays.items()}
        for recipe in program.graph.recipes:
            if recipe.effect is Effect.PURE and recipe.state in random:
                self.stage_of[recipe.id] = self.stage_of[random[recipe.state]]

    def run(self, schedule: Schedule) -> list[set[int]]:
        """Per stage, the values that it touched and that are not there at its end."""
        for step in schedule.steps:
            match step:
                case Run(recipe=recipe, keep=keep) if recipe in self.stage_of:
                    stage = self.stage_of[recipe]
                    again = stage <= self.at
                    self._close(self.at if again else stage - 1)
                    self.live -= {self.number.get(t.value, -1) for t in self.graph.recipes[recipe].consumes}
                    made = self._made(stage, self.at + 1 if again else stage)
                    self.live |= made.intersection(self.number.get(v, -1) for v in keep)
                    self.at = max(self.at, stage)
                case Boundary(segment=segment):
                    self.at = self.entry_of[segment]
                    self._close(self.at - 1)
                    self.live |= self._made(self.at, self.at) - self.hosted
                case Fetch(value=value) if value in self.number and self.at + 1 < len(self.stages):
                    self._close(self.at)
                    self.live.add(self.number[value])
                    self.touched[self.at + 1].add(self.number[value])
                    self.fetches.append((self.number[value], self.at + 1))
                case Drop(value=value, memory=memory) if memory == DEVICE:
                    self.live.discard(self.number.get(value, -1))
        self._close(len(self.stages) - 1)
        return self.gone

    def _made(self, stage: int, during: int) -> set[int]:
        made = {self.number[v] for v in self.stages[stage].outputs}
        self.touched[during] |= made
        return made

    def _close(self, stage: int) -> None:
        """Ends every stage up to this one that is still open."""
        while len(self.gone) <= stage:
            self.gone.append(self.touched[len(self.gone)] - self.live)
