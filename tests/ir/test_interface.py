"""What a plan carries of its own travels in slots that it leaves empty."""

from __future__ import annotations

import pytest

from lowtide.errors import PlanError
from lowtide.ir.call import Read
from lowtide.ir.graph import Role
from lowtide.ir.interface import Interface, Slot, Token, crossing, filled
from tests.ir.sketch import Sketch


def interfaces(*slots: int | None) -> tuple[Interface, Interface]:
    """A forward that returns value 9 and hands on these, and a backward that finds them after a number."""
    given = tuple(Slot(v, i) for i, v in enumerate(slots, 1))
    forward = Interface((0, 1), (Read(9, (), None), *given, Token(), 3))
    return forward, Interface((None, *slots, None, 7), (Read(8, (), None),), constants=((5, 0),))


def test_values_without_a_slot_take_those_that_are_left_empty() -> None:
    forward, backward = filled(interfaces(2, 3, None), {3, 20, 21})
    assert [s.value for s in forward.slots.values()] == [20, 3, 21]
    assert backward.arguments == (None, 20, 3, 21, None, 7)


def test_what_has_a_slot_or_is_there_anyway_keeps_its_place() -> None:
    given = interfaces(2, 3, None)
    assert filled(given, {2, 3, 5, 7}) == given
    assert filled(given[:1], {20}) == given[:1]


def test_too_few_slots_are_an_error() -> None:
    with pytest.raises(PlanError, match="2 values of its own to the backward, and 1 slots are free"):
        filled(interfaces(2, None), {2, 20, 21})


def test_what_some_plan_may_hand_on() -> None:
    sketch = Sketch(parts=(0, 0))
    x, y, z, mask = (sketch.value(8) for _ in range(4))
    sketch.change(x, arrives=0, persistent=True)
    gradient, result = sketch.value(8, arrives=1), sketch.value(8, Role.GRADIENT, leaves=1)
    unused = sketch.value(8, leaves=0)
    sketch.recipe("f", [x], [y])
    sketch.recipe("g", [y], [z])
    sketch.recipe("h", [z], [unused])
    back = sketch.recipe("g'", [gradient, z], [result], segment=1)
    assert crossing(sketch.build()) == {x, y, z}
    pack = sketch.recipe("pack", [y], [mask], program=False)
    other = sketch.recipe("g' from bits", [gradient, mask], [result], segment=1, program=False)
    sketch.group("g", [back], [pack, other])
    assert crossing(sketch.build()) == {x, y, z, mask}
