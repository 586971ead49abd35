"""A policy like tide that knows from a recorded step what comes. Torch-free.

The policy follows the calls through the record. At a known position, a value that this step made is minded by what
the record says of it: nothing where it is spare, most of all where it is kept from its next use on, else the cost of
rematerialising it by how long it is until its next use. Anything else, and everything where a call diverges from the
record, is minded as by tide.
`src/core/eager/policies/guided.hpp` is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowtide._core import Rehearsed
from tests.oracle.ledger import Call, Value
from tests.oracle.neighbourhood import is_wanted
from tests.oracle.policies.base import Scene
from tests.oracle.policies.tide import MOST, AbstractTide, is_idle

_NEVER_USED, _KEPT = -1, -2  # for a distance: see src/core/eager/foresight.hpp
_HARDLY = 1e-6  # what is spare after this call is minded so much during it


class AbstractGuided(AbstractTide):
    """See the module. `divergences` counts calls that were not where the record has them."""

    def __init__(self, host_B: int = 0, link_Bps: float = 0.0) -> None:
        super().__init__(host_B, link_Bps)
        self.found: Rehearsed | None = None
        self.plans = self.is_linear = False  # of the candidate
        self.advised = False  # what was found is said of values; else calls are only followed
        self.doubted = False  # that waits until a step is like the record again
        self.divergences = 0
        self.inside = False  # a call has begun since the step did: not one that ended it by what it wrote
        self.followed = 0  # calls of this step that were found in the record
        self._names: dict[str, int] = {}
        self._number: dict[int, int] = {}  # of a value's content in the record, by id
        self._last: dict[int, int] = {}  # stage in which a value was touched last, by id
        self._stage = 0  # 0: it is not known where the step is
        self._next = 1

    def guide(self, found: Rehearsed, gain: int | None) -> None:
        """Follows a record from the next step on, by one of the candidates that gain; None: calls are only followed."""
        self.found, self.advised, self.doubted = found, gain is not None, False
        if gain is not None:
            found.prepare(gain)
            self.plans, self.is_linear = found.plans(gain), found.is_linear(gain)

    def name_of(self, name: str) -> int:
        """A number that stands for an operator's name."""
        return self._names.setdefault(name, len(self._names))

    def began(self, scene: Scene, name: str, inputs: Sequence[Value]) -> None:  # noqa: ARG002
        self._stage = 0
        self.inside = True
        if self.found is None:
            return
        self._stage = self.found.find(self.name_of(name), [value.root.size_B for value in inputs], self._next)
        if self._stage:
            self._touch(inputs)

    def ended(self, scene: Scene, call: Call) -> None:
        super().ended(scene, call)
        if self.found is None or not self._follow():
            return
        number = self.found.first_output(self._stage)
        end = number + self.found.outputs(self._stage)
        for value in call.outputs:
            if not value.is_view and number < end:
                self._number[value.id], self._last[value.id] = number, self._stage
                number += 1

    def used(self, scene: Scene, name: str, inputs: Sequence[Value], cost_ns: int) -> None:  # noqa: ARG002
        if self.inside:
            self._follow()

    def _follow(self) -> bool:
        """A call has run: on to the next one of the record. False: it is not in the record."""
        if self.found is None:
            return False
        if self._stage != self._next:
            self.divergences += 1
        if not self._stage:
            return False
        self.followed += 1
        self._next = self._stage + 1
        return True

    def restored(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
        if self._stage:
            self._touch((value,))
            if value.call is not None:
                self._touch(value.call.inputs)

    def step_ended(self, scene: Scene) -> None:  # noqa: ARG002
        self._stage, self._next, self.followed = 0, 1, 0
        self.inside = False
        self._number.clear()
        self._last.clear()

    def mind(self, scene: Scene, value: Value) -> float:
        if is_idle(value):
            return 0.0
        found, number = self.found, self._number.get(value.id)
        if not self._stage or found is None or not self.advised or self.doubted or number is None:
            return self.unguided(scene, value)
        last = self._last[value.id]
        if self.plans and found.is_spare(number, last, self._stage):
            return _HARDLY if last == self._stage else 0.0
        distance_ns = found.distance_ns(number, last, self._stage)
        if distance_ns == _KEPT:
            return MOST
        if distance_ns == _NEVER_USED:  # only to recompute others
            if not is_wanted(value):
                return 0.0
            distance_ns = found.remaining_ns(self._stage)
        distance = max(1.0, float(distance_ns))
        return self.weighed(scene, value, distance if self.is_linear else math.sqrt(distance))

    def _touch(self, values: Sequence[Value]) -> None:
        for value in values:
            if value.root.id in self._number:
                self._last[value.root.id] = self._stage
