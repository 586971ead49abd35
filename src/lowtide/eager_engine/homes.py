"""The top of the arena, for what stays: parameters, their gradients, optimizer state. It grows as they come.

Left where a backward happens to put them, gradients would cut the arena into pieces that nothing large fits into.

Units: `_B` bytes.
"""

from __future__ import annotations

import torch

from lowtide.device import storage as storages
from lowtide.device.arena import ALIGNMENT_B, Arena
from lowtide.eager_engine.bodies import Bodies
from lowtide.eager_engine.ledger import Ledger, Value
from lowtide.eager_engine.performer import StoragePerformer

_IN_THE_WAY = 4  # times its size: more is not moved for a new home's sake


class Homes:
    """See the module."""

    def __init__(self, arena: Arena, bodies: Bodies, ledger: Ledger, performer: StoragePerformer) -> None:
        self._arena = arena
        self._bodies = bodies
        self._ledger = ledger
        self._performer = performer

    @property
    def _lo_B(self) -> int:
        return self._arena.capacity_B - self._arena.small_zone_B - self._arena.home_B

    def admit(self, value: Value) -> None:
        """Moves a resident leaf home where that can be done, and never evicts it."""
        self._ledger.settle(value)
        if not self._performer.movable(value) or (value.offset_B or 0) >= self._lo_B:
            return
        storage = self._bodies[value].storage()
        if storage is not None and self.take_in(storage):
            value.offset_B = self._bodies.own(value, storage)

    def take_in(self, storage: torch.UntypedStorage) -> bool:
        """Moves a storage home; False where there is no room."""
        address = storage._cdata
        size_B = -(-storage.nbytes() // ALIGNMENT_B) * ALIGNMENT_B
        if storages.relocate(address, self._arena, storages.HOME):
            return True
        return self._grow(size_B) and storages.relocate(address, self._arena, storages.HOME)

    def _grow(self, size_B: int) -> bool:
        """Makes the zone of homes larger, moving what lies there now; False where that is too much, or does not go."""
        before_B = self._arena.home_B
        lo_B = self._lo_B - size_B
        if lo_B < 0:
            return False
        if not self._arena.slab.in_use_within(lo_B, self._lo_B):
            self._arena.home_B = before_B + size_B
            return True
        blocks = [b for b in self._arena.owners() if b[0] + b[2] > lo_B and b[0] < self._lo_B]
        if sum(block[2] for block in blocks) > _IN_THE_WAY * size_B:
            return False
        self._arena.home_B = before_B + size_B
        self._arena.set_side(False)
        for _, _, _, number in blocks:
            value = self._ledger.values.get(number)
            if value is None or not self._performer.movable(value):
                continue
            storage = self._bodies[value].storage()
            if storage is not None and storages.relocate(storage, self._arena, storages.GENERAL):
                value.offset_B = self._bodies.own(value, storage)
        return True
