"""Records a step as a tape that can be replayed. Torch-free.

A policy hears of calls and deaths as they happen; the record numbers what they name. Contents that the step found
(parameters, inputs, what an earlier step left) are leaves, put first: in a rehearsal all of them are there from the
start. What a call writes to them is left out, but not what the call reads, nor what has to be kept before it. Views
have no bytes and are left out. `src/core/eager/step_record.hpp` is the same.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lowtide._core import Tape
from tests.oracle.capacity import AbstractCapacity
from tests.oracle.ledger import Call, Value

_LEAF, _RAN, _DIED, _USED, _SETTLED = range(5)  # as in src/core/eager/tape.hpp

_Place = tuple[bool, int]  # whether it is a leaf, and which


class _Ran(NamedTuple):
    name: int
    cost_ns: int
    inputs: list[_Place]
    sizes_B: list[int]
    consumed: list[tuple[int, int]]
    temps_B: tuple[int, ...]


class _Used(NamedTuple):
    name: int
    cost_ns: int
    inputs: list[_Place]


class _End(NamedTuple):
    """A death, or that it became a leaf."""

    kind: int
    place: _Place


class Step(NamedTuple):
    """A step that is over.

    Arguments:
        leaves_B: what it found takes.
    """

    tape: Tape
    leaves_B: int


class StepRecord:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[int, _Place] = {}
        self._leaves_B: list[int] = []
        self._made: list[Value] = []
        self._events: list[_Ran | _Used | _End] = []

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

    def used(self, inputs: Sequence[Value], name: int, cost_ns: int) -> None:
        """A call that made nothing that can be recomputed."""
        self._events.append(_Used(name, cost_ns, [self._place_of(value.root) for value in inputs]))

    def settled(self, root: Value) -> None:
        """A root is about to become a leaf."""
        place = self._known.get(root.id)
        if place is not None and not place[0]:
            self._events.append(_End(_SETTLED, place))

    def died(self, root: Value) -> bool:
        """The last handle of a root is gone; False where it is not in the record."""
        place = self._known.pop(root.id, None)
        if place is not None:
            self._events.append(_End(_DIED, place))
        return place is not None

    def take(self, capacity: AbstractCapacity) -> Step:
        """What was recorded. What is alive now is what the step leaves."""
        leaves = len(self._leaves_B)

        def number(place: _Place) -> int:
            is_leaf, index = place
            return 1 + index + (0 if is_leaf else leaves)

        words: list[int] = []
        for size_B in self._leaves_B:
            words += (_LEAF, size_B)
        for event in self._events:
            if isinstance(event, _End):
                words += (event.kind, number(event.place))
                continue
            if isinstance(event, _Used):
                words += (_USED, event.name, event.cost_ns, len(event.inputs), *map(number, event.inputs))
                continue
            words += (_RAN, event.name, event.cost_ns, len(event.inputs), len(event.sizes_B))
            words += (0, len(event.consumed), len(event.temps_B), *map(number, event.inputs), *event.sizes_B)
            for pair in event.consumed:
                words += pair
            words += event.temps_B
        kept = [1 + leaves + i for i, value in enumerate(self._made) if value.id in self._known and value.alive]
        tape = Tape(np.array(words, dtype=np.int64), np.array(kept, dtype=np.int64))
        return Step(tape, sum(capacity.reserved_B(size_B) for size_B in self._leaves_B if size_B))

    def _place_of(self, root: Value) -> _Place:
        place = self._known.get(root.id)
        if place is None:
            place = self._known[root.id] = (True, len(self._leaves_B))
            self._leaves_B.append(root.size_B)
        return place
