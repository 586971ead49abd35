"""A schedule read back as a retention: the inverse of `StageProgram.lift`, for a search to begin from.

The schedule may have been made for other sizes. What a retention cannot say (another order of first runs, a copy to
the host) is not read; what comes out is legal whatever went in, and gives the same schedule where it came from `lift`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.graph import Effect
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule
from lowtide.planners.reductions.stages import ENTRY, StageProgram


def read_back(program: StageProgram, schedule: Schedule) -> NDArray[np.int32]:
    """Finds, per gap, the tau with which the program's retention drops and keeps as the schedule does.

    A value that is gone at the end of a stage that touched it (made it, made it again, or used it) is dropped there:
    the gap's tau lies just behind the last such stage.

    Arguments:
        schedule: of a graph with the same ids.

    Returns: one tau per gap. O(steps + reads).
    """
    core = program.core
    taus: NDArray[np.int32] = program.keep_all(0).taus
    for stage, gone in enumerate(_Walk(program).run(schedule)[:-1]):
        for value in gone:
            gap = core.gap_at(value, stage + 1)
            if core.is_free(gap):
                taus[gap] = stage + 1
    return taus


class _Walk:
    """Goes through a schedule, stage by stage.

    Invariant: `live` holds the values that the device holds after the last step, by their place in the program; the
    own run of stage `at` came last, and reruns since belong to the stage after it.
    """

    def __init__(self, program: StageProgram) -> None:
        self.stages = program.stages
        self.number = {v: i for i, v in enumerate(program.values)}
        self.live: set[int] = set()
        self.touched = [set(reads) for reads in program.read_ids]
        self.gone: list[set[int]] = []
        self.at = -1
        self.entry_of = {s.segment: t for t, s in enumerate(program.stages) if s.recipe == ENTRY}
        self.graph = program.graph
        self.stage_of = {s.recipe: t for t, s in enumerate(program.stages) if s.recipe >= 0}
        self.stage_of |= {way: t for t, s in enumerate(program.stages) for _, way in s.takeovers}
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
                    self.live |= self._made(self.at, self.at)
                case Drop(value=value):
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
