"""Tide with memory of the last step: recorded, rehearsed, and the next one guided by what was found. Torch-free.

When a step ends, the compiled engine runs its record again in simulation under several ways of giving values up
(`src/core/eager/rehearsal.hpp`): by the greedy planner's retention for more or less of the budget, or by distances to
the next use alone. The way that spends least on reruns and moves guides the next step; if none spends less than tide
does, tide goes on.

A step that runs like the record, beside as many bytes of others, needs no new one. One that departs goes on as tide
where the record says nothing, and the log says so, and so does the whole step after it; it is rehearsed once it has
come twice alike, so that programs whose steps never repeat do not pay.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Rehearsed, rehearse, step_digest
from lowtide.dynamic.ledger import Call, Value
from lowtide.dynamic.policies.base import Scene
from lowtide.dynamic.policies.guided import AbstractGuided
from lowtide.dynamic.step_record import Step, StepRecord

_LOG = logging.getLogger(__name__)
_TOLERANCE = 50  # one call, or byte, in so many may be elsewhere in a step that is like the record
_MOST_REHEARSALS = 16  # of steps like the record
_SHARES = (1.0, 0.92, 0.84)  # of the capacity, that plans are tried for


@dataclass(slots=True, eq=False)
class _Trial:
    """A plan, and what the step that it guided spent on reruns and moves."""

    found: Rehearsed
    advises: bool = True
    spent_ns: int = -1


@final
class TideMemory(AbstractGuided):
    """See the module."""

    name: ClassVar[str] = "tide-memory"
    passes: ClassVar[int] = 2

    def __init__(self, host_B: int = 0, link_Bps: float = 0.0) -> None:
        super().__init__(host_B, link_Bps)
        self._record = StepRecord()
        self._trials: list[_Trial] = []  # the last one guides until all are settled
        self._settled = False
        self._digest: int | None = None  # of the last step that departed
        self._found_B = 0  # in use when the step began, without what died since
        self._rehearsed_B = 0  # the capacity of the last rehearsal
        self._rehearsals = 0  # of steps like the record
        self._began_ns = 0
        self._moved_B = 0  # before this step
        self._calls_ns = 0
        self._calls = 0
        self._departures = 0  # before this step

    def began(self, scene: Scene, name: str, inputs: Sequence[Value]) -> None:
        if self._record.is_empty:
            self._found_B = scene.room.in_use_B
            self._began_ns = scene.ledger.clock
            self._moved_B = scene.moved_B
        super().began(scene, name, inputs)

    def ended(self, scene: Scene, call: Call) -> None:
        self._calls += 1
        self._calls_ns += call.cost_ns
        self._record.ended(call, self.name_of(call.name))
        super().ended(scene, call)

    def died(self, scene: Scene, value: Value) -> None:
        if not self._record.died(value) and value.resident:
            self._found_B -= scene.room.reserved_B(value.size_B)

    def step_ended(self, scene: Scene) -> None:
        step = self._record.take()
        capacity_B = scene.room.capacity_B - max(0, self._found_B - step.leaves_B)
        if self._calls and capacity_B > 0:
            changed = abs(capacity_B - self._rehearsed_B) > scene.room.capacity_B // _TOLERANCE
            self.doubted = self._departed()
            if self.doubted:
                self._return_to(step, capacity_B)
            elif self.found is None or (changed and self._rehearsals < _MOST_REHEARSALS):
                self._begin(step, capacity_B)
            elif not self._settled:
                rerun_ns = scene.ledger.clock - self._began_ns - self._calls_ns
                self._compare(step, capacity_B, rerun_ns + self.moves_ns(scene.moved_B - self._moved_B))
        self._record = StepRecord()
        self._departures, self._calls, self._calls_ns = self.departures, 0, 0
        super().step_ended(scene)

    def _departed(self) -> bool:
        """Whether the step that ends was unlike the record."""
        if self.found is None:
            return False
        departures, tolerated = self.departures - self._departures, self._calls // _TOLERANCE
        if departures <= tolerated and self.found.stages - 2 - self.followed <= tolerated:
            return False
        _LOG.info("a step of %d calls departed from the one before: %d were not guided", self._calls, departures)
        return True

    def _return_to(self, step: Step, capacity_B: int) -> None:
        """A step that departed: if one like it did so before, it is what comes from now on."""
        digest = step_digest(step.tape)
        if digest == self._digest:
            self._rehearsals = 0
            self._begin(step, capacity_B)
        self._digest = digest

    def _begin(self, step: Step, capacity_B: int) -> None:
        self._rehearsed_B = capacity_B
        self._trials.clear()
        found = self._rehearse(step, capacity_B)
        self._attempt(_Trial(found, found.advises))
        self._settled = False

    def _rehearse(self, step: Step, capacity_B: int) -> Rehearsed:
        return rehearse(step.tape, step.fixed, capacity_B, self._host_B, self._link_Bps)

    def _attempt(self, trial: _Trial) -> None:
        self._rehearsals += 1
        self._trials.append(trial)
        self.guide(trial.found, advises=trial.advises)

    def _compare(self, step: Step, capacity_B: int, spent_ns: int) -> None:
        """Simulations do not know everything that a step does.

        Where a step spends more than its rehearsal, plans for less room have a step each, then tide has, and the
        cheapest stays.
        """
        self._trials[-1].spent_ns = spent_ns
        tried = len(self._trials)
        first = self._trials[0].found
        self._settled = tried == 1 and spent_ns - first.spent_ns <= first.spent_ns // _TOLERANCE
        if self._settled:
            return
        if tried < len(_SHARES):
            found = self._rehearse(step, int(capacity_B * _SHARES[tried]))
            self._attempt(_Trial(found, found.advises))
        elif tried == len(_SHARES):
            self._attempt(_Trial(first, advises=False))
        else:
            self._settled = True
            best = min(self._trials, key=lambda trial: trial.spent_ns)
            self.guide(best.found, advises=best.advises)
