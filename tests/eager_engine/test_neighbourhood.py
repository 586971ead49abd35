"""Neighbourhoods are what a search would find, and classes what merging sets by hand gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eager_engine.machine import Machine, program
from tests.oracle.capacity import Tank
from tests.oracle.ledger import Ledger, Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Classes, Regions, children, is_gone, parents
from tests.oracle.policies.dtr import Dtr
from tests.oracle.policies.dtr_classes import DtrClasses

CAPACITIES = st.integers(31, 120).map(lambda units: units * 64)


def _gone_from(value: Value, neighbours: Callable[[Value], Iterable[Value]]) -> set[Value]:
    """Evicted values that are reached through evicted values."""
    found: set[Value] = set()
    edge = {value}
    while edge:
        edge = {kin for near in edge for kin in neighbours(near) if is_gone(kin)} - found
        found |= edge
    return found


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), capacity_B=CAPACITIES)
def test_regions_are_what_a_search_finds(seed: int, capacity_B: int) -> None:
    machine = Machine(Tank(capacity_B), Dtr())
    neighbourhood = machine.manager.neighbourhood
    assert isinstance(neighbourhood, Regions)

    def check() -> None:
        for value in machine.manager.ledger.evictable.values():
            assert neighbourhood.ancestors_ns(value) == sum(v.cost_ns for v in _gone_from(value, parents))
            assert neighbourhood.descendants_ns(value) == sum(v.cost_ns for v in _gone_from(value, children))

    program(machine, seed, watch=check)


class SetsByHand(AbstractNeighbourhood):
    """Classes as sets of values that are or were gone; those that were rematerialised are left out of the sums."""

    def __init__(self, ledger: Ledger) -> None:
        self.classes = Classes(ledger)
        self.sets: list[set[int]] = []
        self.gone: dict[int, tuple[int, int]] = {}  # by value id: a number of this absence, and the cost
        self.absences = 0

    def evicted(self, root: Value) -> None:
        self.classes.evicted(root)
        self.absences += 1
        numbers = {self.gone[v.id][0] for v in (*parents(root), *children(root)) if v.id in self.gone}
        joined = [group for group in self.sets if group & numbers]
        self.sets = [group for group in self.sets if not group & numbers]
        self.sets.append({self.absences}.union(*joined))
        self.gone[root.id] = (self.absences, root.cost_ns)

    def restored(self, root: Value) -> None:
        self.classes.restored(root)
        del self.gone[root.id]

    def forgotten(self, root: Value) -> None:
        self.classes.forgotten(root)
        self.gone.pop(root.id, None)

    def neighbours_ns(self, value: Value) -> int:
        numbers = {self.gone[v.id][0] for v in (*parents(value), *children(value)) if v.id in self.gone}
        near = set().union(*(group for group in self.sets if group & numbers))
        return sum(cost_ns for number, cost_ns in self.gone.values() if number in near)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), capacity_B=CAPACITIES)
def test_classes_are_sets_that_are_merged_and_never_split(seed: int, capacity_B: int) -> None:
    machine = Machine(Tank(capacity_B), DtrClasses())
    by_hand = SetsByHand(machine.manager.ledger)
    machine.manager.neighbourhood = by_hand
    machine.manager.scene.neighbourhood = by_hand.classes

    def check() -> None:
        for value in machine.manager.ledger.evictable.values():
            assert by_hand.classes.neighbours_ns(value) == by_hand.neighbours_ns(value)
        for value in machine.manager.ledger.values.values():
            assert (by_hand.classes.class_of(value) is not None) == (value.id in by_hand.gone)

    program(machine, seed, watch=check)
