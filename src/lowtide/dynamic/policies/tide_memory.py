"""Tide with memory of the last step: recorded, rehearsed, and the next one guided by what was found. Torch-free.

When a step ends, the compiled engine runs its record again in simulation under several ways of giving values up
(`src/core/eager/rehearsal.hpp`): by the greedy planner's retention for more or less of the budget, or by distances to
the next use alone. The way that recomputes least guides the next step; if none recomputes less than tide does, tide
goes on.

A step that runs like the record needs no new one. One that departs goes on as tide where the record says nothing, and
the log says so; it is rehearsed once it has come twice alike, so that programs whose steps never repeat do not pay.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, final

from lowtide._core import rehearse, step_digest
from lowtide.dynamic.ledger import Call, Value
from lowtide.dynamic.policies.base import Scene
from lowtide.dynamic.policies.guided import AbstractGuided
from lowtide.dynamic.step_record import StepRecord

_LOG = logging.getLogger(__name__)
_TOLERANCE = 50  # one call in so many may be elsewhere in a step that is like the record


@final
class TideMemory(AbstractGuided):
    """See the module."""

    name: ClassVar[str] = "tide-memory"
    passes: ClassVar[int] = 2

    def __init__(self, host_B: int = 0, link_Bps: float = 0.0) -> None:
        super().__init__(host_B, link_Bps)
        self._record = StepRecord()
        self._digest: int | None = None  # of the last step that departed
        self._found_B = 0  # in use when the step began
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

    def died(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
        self._record.died(value)

    def step_ended(self, scene: Scene) -> None:
        tolerated = self._calls // _TOLERANCE
        departures = self.departures - self._departures
        if self._calls and (
            self.found is None or departures > tolerated or self.found.stages - 2 - self.followed > tolerated
        ):
            if self.found is not None:
                _LOG.info(
                    "a step departed from the one before in %d of %d calls: it was not guided there",
                    departures,
                    self._calls,
                )
            self._remember(scene)
        self._record = StepRecord()
        self._departures, self._calls = self.departures, 0
        super().step_ended(scene)

    def _remember(self, scene: Scene) -> None:
        step = self._record.take()
        digest = step_digest(step.tape)
        capacity_B = scene.room.capacity_B - max(0, self._found_B - step.leaves_B)
        if capacity_B > 0 and (self.found is None or digest == self._digest):
            self.found = rehearse(step.tape, capacity_B, self._host_B, self._link_Bps)
        self._digest = digest
