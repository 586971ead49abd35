"""Tide with memory of the last step: recorded, rehearsed, and the next one guided by what was found. Torch-free.

When a step ends, the compiled engine runs its record again in simulation under several ways of giving values up
(`src/core/eager/rehearsal.hpp`): by the greedy planner's retention for more or less of the budget, or by distances to
the next use alone. The way that recomputes least guides the next step; if none recomputes less than tide does, tide
goes on.

A step that runs like the record, beside as many bytes of others, needs no new one. One that departs goes on as tide
where the record says nothing, and the log says so; it is rehearsed once it has come twice alike, so that programs
whose steps never repeat do not pay.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, final

from lowtide._core import rehearse, step_digest
from lowtide.dynamic.ledger import Call, Value
from lowtide.dynamic.policies.base import Scene
from lowtide.dynamic.policies.guided import AbstractGuided
from lowtide.dynamic.step_record import Step, StepRecord

_LOG = logging.getLogger(__name__)
_TOLERANCE = 50  # one call, or byte, in so many may be elsewhere in a step that is like the record
_MOST_REHEARSALS = 8  # of like steps, for other capacities


@final
class TideMemory(AbstractGuided):
    """See the module."""

    name: ClassVar[str] = "tide-memory"
    passes: ClassVar[int] = 2

    def __init__(self, host_B: int = 0, link_Bps: float = 0.0) -> None:
        super().__init__(host_B, link_Bps)
        self._record = StepRecord()
        self._digest: int | None = None  # of the last step that departed
        self._found_B = 0  # in use when the step began, without what died since
        self._rehearsed_B = 0  # the capacity of the last rehearsal
        self._rehearsals = 0  # of steps like the record
        self._calls = 0
        self._departures = 0  # before this step

    def began(self, scene: Scene, name: str, inputs: Sequence[Value]) -> None:
        if self._record.is_empty:
            self._found_B = scene.room.in_use_B
        super().began(scene, name, inputs)

    def ended(self, scene: Scene, call: Call) -> None:
        self._calls += 1
        self._record.ended(call, self.name_of(call.name))
        super().ended(scene, call)

    def died(self, scene: Scene, value: Value) -> None:
        if not self._record.died(value) and value.resident:
            self._found_B -= scene.room.reserved_B(value.size_B)

    def step_ended(self, scene: Scene) -> None:
        step = self._record.take()
        capacity_B = scene.room.capacity_B - max(0, self._found_B - step.leaves_B)
        if self._calls and capacity_B > 0:
            departed = self._departed()
            changed = abs(capacity_B - self._rehearsed_B) > scene.room.capacity_B // _TOLERANCE
            if self.found is None or departed or (changed and self._rehearsals < _MOST_REHEARSALS):
                self._remember(step, capacity_B, departed)
        self._record = StepRecord()
        self._departures, self._calls = self.departures, 0
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

    def _remember(self, step: Step, capacity_B: int, departed: bool) -> None:
        digest = step_digest(step.tape)
        if not departed or digest == self._digest:
            self.found = rehearse(step.tape, step.fixed, capacity_B, self._host_B, self._link_Bps)
            self._rehearsed_B = capacity_B
            self._rehearsals = 1 if departed else self._rehearsals + 1
        self._digest = digest
