"""Tide with memory of the last step: recorded, rehearsed, and the next one guided by what was found. Torch-free.

When a step ends, the compiled engine simulates its record under several candidates of evicting values
(`src/core/eager/rehearsal.hpp`): by the greedy planner's retention for more or less of the budget, or by distances to
the next use alone.

Simulations do not know everything that a step does. So the candidates that a rehearsal found to spend less than tide
are choices, and so is tide: each is worth what the last step that it guided spent on recomputations and slides, or else
what its rehearsal did. The one of least worth guides the next step. Where a step spends more than was foreseen,
candidates for fewer bytes join.

A step is rehearsed once it has come twice, one after the other: programs whose steps never repeat go as by tide, and do
not pay for rehearsals. A step that runs like the record, with as many bytes of others, needs no new one; one that
diverges goes on as tide where the record says nothing, and so does the one after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Rehearsed, rehearse, step_digest
from tests.oracle.ledger import Call, Value
from tests.oracle.policies.base import Scene
from tests.oracle.policies.guided import AbstractGuided
from tests.oracle.step_record import Step, StepRecord

_TOLERANCE = 50  # one call, or byte, in so many may be elsewhere in a step that is like the record
_MOST_REHEARSALS = 16  # of steps like the record
_MOST_CHANGES = 16  # of the candidate, for one record
_SHARES = (1.0, 0.92, 0.84)  # of the capacity, that steps are rehearsed for


@dataclass(slots=True, eq=False)
class _Choice:
    """A candidate that the next step may follow; `gain` None: as tide.

    Arguments:
        spent_ns: by the last step that followed it; None: there was none.
    """

    found: Rehearsed
    gain: int | None
    foreseen_ns: int
    spent_ns: int | None = None

    @property
    def worth_ns(self) -> float:
        if self.spent_ns is not None:
            return self.spent_ns
        return self.foreseen_ns if self.foreseen_ns >= 0 else math.inf


@final
class TideMemory(AbstractGuided):
    """See the module."""

    name: ClassVar[str] = "tide-memory"
    passes: ClassVar[int] = 3  # the second is rehearsed, since it is like the first

    def __init__(self, host_B: int = 0, link_Bps: float = 0.0) -> None:
        super().__init__(host_B, link_Bps)
        self._record = StepRecord()
        self._choices: list[_Choice] = []  # the first one is tide
        self._followed: _Choice | None = None
        self._rehearsed = 0  # for how many of _SHARES
        self._changes = 0  # from one choice to another, since the record
        self._digest: int | None = None  # of the last step that departed
        self._found_B = 0  # in use when the step began, without what died since
        self._rehearsed_B = 0  # the capacity of the last rehearsal
        self._rehearsals = 0  # of steps like the record
        self._recompute_ns = 0  # before this step
        self._moved_B = 0
        self._calls = 0
        self._divergences = 0  # before this step

    def began(self, scene: Scene, name: str, inputs: Sequence[Value]) -> None:
        if self._record.is_empty:
            self._found_B = scene.capacity.in_use_B
            self._recompute_ns = scene.recompute_ns
            self._moved_B = scene.moved_B
        super().began(scene, name, inputs)

    def ended(self, scene: Scene, call: Call) -> None:
        self._calls += 1
        self._record.ended(call, self.name_of(call.name))
        super().ended(scene, call)

    def used(self, scene: Scene, name: str, inputs: Sequence[Value], cost_ns: int) -> None:
        if not self.inside:
            return
        self._calls += 1
        self._record.used(inputs, self.name_of(name), cost_ns)
        super().used(scene, name, inputs, cost_ns)

    def settled(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
        self._record.settled(value)

    def died(self, scene: Scene, value: Value) -> None:
        if not self._record.died(value) and value.resident:
            self._found_B -= scene.capacity.reserved_B(value.size_B)

    def step_ended(self, scene: Scene) -> None:
        step = self._record.take(scene.capacity)
        capacity_B = scene.capacity.capacity_B - max(0, self._found_B - step.leaves_B)
        if self._calls and capacity_B > 0:
            spent_ns = scene.recompute_ns - self._recompute_ns + self.moves_ns(scene.moved_B - self._moved_B)
            changed = abs(capacity_B - self._rehearsed_B) > scene.capacity.capacity_B // _TOLERANCE
            guided = self.advised and not self.doubted
            self.doubted = self._departed()
            if self.found is None or self.doubted:
                self._look_for_another(step, capacity_B, spent_ns)
            elif changed and self._rehearsals < _MOST_REHEARSALS:
                self._begin(step, capacity_B, None if guided else spent_ns)
            else:
                followed = self._followed if guided else self._choices[0]
                assert followed is not None
                self._compare(step, capacity_B, spent_ns, followed)
        self._record = StepRecord()
        self._divergences, self._calls = self.divergences, 0
        super().step_ended(scene)

    def _departed(self) -> bool:
        """Whether the step that ends was unlike the record."""
        if self.found is None:
            return False
        divergences, tolerated = self.divergences - self._divergences, self._calls // _TOLERANCE
        return divergences > tolerated or self.found.stages - 2 - self.followed > tolerated

    def _look_for_another(self, step: Step, capacity_B: int, spent_ns: int) -> None:
        """A first step, or one that departed: if the last one was like it, it is what comes from now on."""
        digest = step_digest(step.tape)
        if digest == self._digest:
            self._rehearsals = 0
            self._begin(step, capacity_B, spent_ns)
        self._digest = digest

    def _begin(self, step: Step, capacity_B: int, spent_ns: int | None) -> None:
        """Rehearses a step; `spent_ns`: by it, if it went on as tide."""
        self._rehearsed_B = capacity_B
        self._rehearsed = self._changes = 0
        found, candidates = self._rehearse(step, capacity_B)
        unguided = _Choice(found, None, found.unguided_ns)
        self._choices = [unguided, *candidates]
        self._follow_choice(self._cheapest())
        unguided.spent_ns = spent_ns  # what rehearsals say is compared before

    def _rehearse(self, step: Step, capacity_B: int) -> tuple[Rehearsed, list[_Choice]]:
        self._rehearsals += 1
        self._rehearsed += 1
        known = self.density
        found = rehearse(step.tape, capacity_B, self._host_B, self._link_Bps, known.weighted_log, known.weight_B)
        return found, [_Choice(found, gain, spent_ns) for gain, spent_ns in enumerate(found.spent_ns)]

    def _cheapest(self) -> _Choice:
        return min(self._choices, key=lambda choice: choice.worth_ns)

    def _follow_choice(self, choice: _Choice) -> None:
        self._followed = choice
        self.guide(choice.found, choice.gain)

    def _compare(self, step: Step, capacity_B: int, spent_ns: int, last: _Choice) -> None:
        """What a step has spent that followed a choice: perhaps another one is worth more."""
        last.spent_ns = spent_ns
        as_foreseen = last.foreseen_ns >= 0 and spent_ns <= last.foreseen_ns + last.foreseen_ns // _TOLERANCE
        if not as_foreseen and self._rehearsed < len(_SHARES) and self._rehearsals < _MOST_REHEARSALS:
            self._choices += self._rehearse(step, int(capacity_B * _SHARES[self._rehearsed]))[1]
        best = self._cheapest()
        if best is self._followed:
            return
        if spent_ns - best.worth_ns <= spent_ns // _TOLERANCE or self._changes >= _MOST_CHANGES:
            return
        self._changes += 1
        self._follow_choice(best)
