"""The manager keeps a budget and every promise about contents: what is rematerialised is what was there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide._core import Arena
from tests.eager_engine.machine import ALIGNMENT_B, Machine, program
from tests.oracle.capacity import AbstractCapacity, Addresses, Tank
from tests.oracle.eviction_manager import OutOfCapacity
from tests.oracle.ledger import Value
from tests.oracle.policies.base import AbstractPolicy, Scene
from tests.oracle.policies.dtr_classes import DtrClasses
from tests.oracle.policies.lru import Lru
from tests.oracle.policies.msps import Msps
from tests.oracle.policies.tide import Tide


@final
class Sending(AbstractPolicy):
    """Oldest first, to the host."""

    name: ClassVar[str] = "sending"

    def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:  # noqa: ARG002
        return tuple(scene.ledger.evictable.values())[:1]

    def sends(self, scene: Scene, value: Value) -> bool:  # noqa: ARG002
        return value.size_B > 64


@pytest.mark.parametrize("policy", [DtrClasses, Lru, Msps, Tide, Sending], ids=lambda p: p.name)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), capacity_B=st.integers(31, 120), addresses=st.booleans())
def test_contents_survive_anything(policy: type[AbstractPolicy], seed: int, capacity_B: int, addresses: bool) -> None:
    """Evictions, updates in place and of leaves, commits, deaths and refusals, in any order."""
    capacity_B *= ALIGNMENT_B
    capacity: AbstractCapacity = Addresses(Arena(capacity_B, ALIGNMENT_B)) if addresses else Tank(capacity_B)
    machine = Machine(capacity, policy())
    program(machine, seed)
    assert capacity.peak_B <= capacity_B


def _machine(capacity_B: int) -> Machine:
    return Machine(Tank(capacity_B), Lru())


def test_a_long_chain_is_recomputed_without_recursion() -> None:
    machine = _machine(300)
    first = value = machine.leaf(10, 1)
    for _ in range(3000):
        (value,) = machine.call("f", [value], [100])
        if len(machine.handles) > 2:
            machine.forget(machine.handles[1])
    machine.call("g", [first], [200])  # evicts the end of the chain
    assert not value.resident
    machine.manager.enter((value,))
    assert machine.contents[value] == machine.truth[value]
    assert machine.manager.statistics.recomputations == 3000


def test_an_updated_value_is_recomputed_through_its_old_content() -> None:
    machine = _machine(250)
    (a,) = machine.call("a", [machine.leaf(10, 1)], [100])
    (reader,) = machine.call("r", [a], [20])
    machine.write("u", [a])
    new = machine.handles[1]
    assert new is not a
    assert new.offset_B is not None
    assert not a.resident
    machine.call("big", [machine.handles[0]], [220])
    assert not new.resident
    assert not reader.resident
    machine.forget(machine.handles[-1])
    machine.manager.enter((reader, new))  # both need the old content, one of them destroys it
    assert machine.contents[reader] == machine.truth[reader]
    assert machine.contents[new] == machine.truth[new]


def test_a_leaf_is_written_when_nothing_alive_needs_its_old_content() -> None:
    machine = _machine(1000)
    leaf = machine.leaf(10, 1)
    (a,) = machine.call("a", [leaf], [100])
    (b,) = machine.call("b", [a], [100])
    machine.manager.evict(a)
    machine.write("step_", [leaf])
    assert a.call is None
    assert b.call is None
    assert not leaf.readers
    machine.check()


def test_leaves_are_kept_while_something_would_need_them() -> None:
    machine = _machine(1000)
    leaf = machine.leaf(100, 1)
    (a,) = machine.call("a", [leaf], [100])
    machine.forget(leaf)
    assert leaf.resident
    machine.forget(a)
    assert not machine.contents
    assert not machine.manager.ledger.values


def test_a_refusal_leaves_nothing_pinned_and_names_the_bytes() -> None:
    machine = _machine(300)
    leaf = machine.leaf(100, 1)
    (a,) = machine.call("a", [leaf], [100])
    with pytest.raises(OutOfCapacity, match="Raise the budget") as caught:
        machine.call("b", [leaf, a], [200])
    assert caught.value.need_B == 200
    assert caught.value.in_use_B == 200
    machine.check()
    machine.call("c", [leaf], [200])  # a is evicted
    machine.check()


def test_slides_move_values_and_their_offsets() -> None:
    capacity = Addresses(Arena(8 * ALIGNMENT_B, ALIGNMENT_B))
    machine = Machine(capacity, Tide())
    values = [machine.leaf(ALIGNMENT_B, k) for k in range(8)]
    for value in values[::2]:
        machine.forget(value)
    machine.leaf(4 * ALIGNMENT_B, 9)
    assert machine.manager.statistics.moves > 0
    assert {block.offset_B for block in capacity.blocks()} >= {value.offset_B for value in values[1::2]}
    machine.check()


def test_what_is_there_is_not_evicted_for_what_is_recomputed_with_it() -> None:
    """Before a leaf is written, all that depends on it has to be resident."""
    machine = _machine(200)
    leaf = machine.leaf(10, 1)
    (between,) = machine.call("between", [leaf], [40])
    (early,) = machine.call("early", [between], [60])
    (late,) = machine.call("late", [leaf], [60], cost_ns=1000)
    (other,) = machine.call("other", [], [40])  # evicts `between`
    (large,) = machine.call("large", [], [80])  # evicts `early`
    for value in (between, large):
        machine.forget(value)
    assert [value.resident for value in (early, late, other)] == [False, True, True]
    machine.write("update", [leaf])
    assert [value.resident for value in (early, late, other)] == [True, True, False]
    assert machine.manager.statistics.recomputations == 2


def test_a_loss_does_not_go_with_the_window_that_it_lies_in() -> None:
    """Its ancestors go in the backward; then it would take the whole forward to recompute it."""
    size_B = 8192
    machine = Machine(Addresses(Arena(6 * size_B + ALIGNMENT_B, ALIGNMENT_B)), Tide())
    (before,) = machine.call("before", [], [size_B])
    (loss,) = machine.call("loss", [], [4])
    machine.call("behind", [], [size_B])
    for _ in range(4):
        machine.call("dear", [], [size_B], cost_ns=500_000)
    machine.call("wide", [], [2 * size_B])
    assert not before.resident
    assert loss.resident
