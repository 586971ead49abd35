"""What a step did, as a tape that can be run again. Torch-free.

A policy hears of calls and deaths as they happen; the record numbers what they name. Contents that the step found
(parameters, inputs, what an earlier step left) are leaves, put first: in a rehearsal all of them are there from the
start. Views have no bytes and are left out. `src/core/eager/step_record.hpp` is the same.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lowtide._core import Tape
from lowtide.dynamic.ledger import Call, Value

_LEAF, _RAN, _DIED = range(3)  # as in src/core/eager/tape.hpp

_Place = tuple[bool, int]  # whether it is a leaf, and which


class _Ran(NamedTuple):
    name: int
    cost_ns: int
    inputs: list[_Place]
    sizes_B: list[int]
    consumed: list[tuple[int, int]]
    temps_B: tuple[int, ...]


class Step(NamedTuple):
    """A step that is over.

    Arguments:
        fixed: numbers of what it leaves that had become a leaf: nothing makes it again.
        leaves_B: bytes of what it found.
    """

    tape: Tape
    fixed: list[int]
    leaves_B: int


class StepRecord:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[int, _Place] = {}
        self._leaves_B: list[int] = []
        self._made: list[Value] = []
        self._events: list[_Ran | _Place] = []

    @property
    def is_empty(self) -> bool:
        return not self._events

    def ended(self, call: Call, name: int) -> None:
        """A first run; `name` stands for the operator."""
        inputs = [self._place_of(value.root) for value in call.inputs]
        outputs = [value for value in call.outputs if not value.is_view]
        for value in outputs:
            self._known[value.id] = (False, len(self._made))
            self._made.append(value)
        if outputs:
            place = {value.place: i for i, value in enumerate(outputs)}
            consumed = [(source, place[output]) for source, output in call.consumes if output in place]
            for source, _ in consumed:  # what is written over cannot die any more
                self._known.pop(call.inputs[source].root.id, None)
            self._events.append(
                _Ran(name, call.cost_ns, inputs, [value.size_B for value in outputs], consumed, call.temps_B)
            )

    def died(self, root: Value) -> bool:
        """The last handle of a root is gone; False where it is not in the record."""
        place = self._known.pop(root.id, None)
        if place is not None:
            self._events.append(place)
        return place is not None

    def take(self) -> Step:
        """What was recorded. What is alive now is what the step leaves."""
        leaves = len(self._leaves_B)

        def number(place: _Place) -> int:
            is_leaf, index = place
            return 1 + index + (0 if is_leaf else leaves)

        words: list[int] = []
        for size_B in self._leaves_B:
            words += (_LEAF, size_B)
        for event in self._events:
            if not isinstance(event, _Ran):
                words += (_DIED, number(event))
                continue
            words += (_RAN, event.name, event.cost_ns, len(event.inputs), len(event.sizes_B))
            words += (0, len(event.consumed), len(event.temps_B), *map(number, event.inputs), *event.sizes_B)
            for pair in event.consumed:
                words += pair
            words += event.temps_B
        kept = [1 + leaves + i for i, value in enumerate(self._made) if value.id in self._known and value.alive]
        tape = Tape(np.array(words, dtype=np.int64), np.array(kept, dtype=np.int64))
        fixed = [number for number in kept if self._made[number - 1 - leaves].call is None]
        return Step(tape, fixed, sum(self._leaves_B))

    def _place_of(self, root: Value) -> _Place:
        place = self._known.get(root.id)
        if place is None:
            place = self._known[root.id] = (True, len(self._leaves_B))
            self._leaves_B.append(root.size_B)
        return place
