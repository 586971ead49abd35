"""Storages that come from elsewhere: parameters, buffers, inputs, whatever was made before the context or beside it.

Those that may be moved are brought into the arena, parameters to its top, so that every byte counts. Those that may not
(shared with numpy or another process) stay where they are, and the arena has a copy, which is compared whenever an
operator reads them: others may write there.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lowtide.device import storage as storages
from lowtide.device.arena import ALIGNMENT_B, Arena
from lowtide.eager_engine.bodies import NOWHERE, Bodies
from lowtide.eager_engine.homes import Homes
from lowtide.eager_engine.kernels import Kernels
from lowtide.eager_engine.ledger import Ledger, Value
from lowtide.eager_engine.recorder import Recorder


class Arrivals:
    """See the module.

    Arguments:
        found_parameter: is called with every parameter when it is first seen.
    """

    def __init__(
        self,
        arena: Arena,
        bodies: Bodies,
        ledger: Ledger,
        kernels: Kernels,
        homes: Homes,
        recorder: Recorder,
        found_parameter: Callable[[Tensor], None],
    ) -> None:
        self._arena = arena
        self._bodies = bodies
        self._ledger = ledger
        self._kernels = kernels
        self._homes = homes
        self._recorder = recorder
        self._found_parameter = found_parameter
        self.parameters: set[int] = set()
        self.foreign_B = 0

    def meet(self, tensor: Tensor, storage: torch.UntypedStorage) -> Value:
        """Makes a leaf of a storage that is seen for the first time.

        Raises:
            torch.OutOfMemoryError: if there is no room for it.
        """
        is_parameter = tensor.requires_grad and tensor.is_leaf
        value = self._bring(storage, home=is_parameter)
        self._recorder.leaf(value.id, value.size_B)
        if is_parameter:
            self.parameters.add(value.id)
            self._found_parameter(tensor)
        return value

    def bring_home(self, tensor: Tensor) -> None:
        """Brings in what is going to stay: a parameter, a buffer, an optimizer's state."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return
        known = self._bodies.by_address.get(storage._cdata)
        if known is None:
            if tensor.requires_grad and tensor.is_leaf:
                self.meet(tensor, storage)
            else:
                value = self._bring(storage, home=True)
                self._recorder.leaf(value.id, value.size_B)
        elif not known.home:
            self._kernels.commit(known)
            self._homes.admit(known)

    def keep(self, storage: torch.UntypedStorage) -> Value:
        """Makes a leaf of what an operator made that cannot be run again; the caller records it."""
        offset_B = self._bodies.offset_B(storage)
        if offset_B is None or storages.objection(storage):
            return self._bring(storage, home=False)
        value = self._ledger.leaf(storage.nbytes(), offset_B)
        self._bodies.show(value, storage)
        return value

    def renew(self, value: Value) -> Value:
        """Others have written to a storage: what was computed from it keeps the copy, and it is met anew.

        What stays all the time is the same value afterwards, as if an operator had written there.

        Raises:
            torch.OutOfMemoryError: if there is no room for another copy.
        """
        storage = self._bodies[value].storage()
        assert storage is not None
        if value.home or value.pins:
            self._kernels.settle_dependents(value)  # from the copy, which is as they read it
            self._bodies.copy_anew(value)
            self._recorder.wrote("elsewhere", [value.id], [value.id], 0)
            return value
        if self._bodies.offset_B(storage) is None:
            self.foreign_B -= value.size_B  # it is counted again
        self._recorder.died(value.id)
        self._bodies.died(value, kept=False)
        self._kernels.keeper.died(value)
        renewed = self._bring(storage, home=False)
        self._recorder.leaf(renewed.id, renewed.size_B)
        return renewed

    def part(self, storage: torch.UntypedStorage) -> None:
        """Leaves a storage to others, who may write to it; what was computed from it keeps a copy.

        Raises:
            torch.OutOfMemoryError: if there is no room for that.
        """
        self._kernels.catch_up()
        value = self._bodies.by_address.get(storage._cdata)
        if value is None or self._bodies[value].aside is not None:
            return
        self._kernels.commit(value)
        copy = self._set_aside(value.size_B) if value.readers or value.pins else None
        self._bodies.part(value, copy)
        if copy is not None:
            value.offset_B = self._bodies.own(value, copy)
        self._recorder.died(value.id)
        self._kernels.keeper.died(value)

    def _bring(self, storage: torch.UntypedStorage, *, home: bool) -> Value:
        size_B = storage.nbytes()
        aside = None
        is_foreign = self._bodies.offset_B(storage) is None
        if is_foreign:
            self.foreign_B += size_B
        if storages.objection(storage):  # bytes in the arena may be shared as well: a look at them from numpy
            aside = self._set_aside(size_B)
        elif is_foreign and not (home and self._homes.take_in(storage)):
            self._take_in(storage)
        offset_B = self._bodies.offset_B(storage if aside is None else aside)
        value = self._ledger.leaf(size_B, offset_B or NOWHERE, home=home)
        self._bodies.show(value, storage, aside)
        self._bodies.copy_anew(value)
        return value

    def _take_in(self, storage: torch.UntypedStorage) -> None:
        self._arena.set_side(True)
        if not storages.relocate(storage, self._arena, storages.GENERAL):
            self._kernels.make_room(storage.nbytes())
            if not storages.relocate(storage, self._arena, storages.GENERAL):
                raise self._kernels.out_of_memory(storage.nbytes())

    def _set_aside(self, size_B: int) -> torch.UntypedStorage:
        aside = self._arena.set_aside(size_B)
        if aside is None:
            self._kernels.make_room(-(-size_B // ALIGNMENT_B) * ALIGNMENT_B)
            aside = self._arena.set_aside(size_B)
            if aside is None:
                raise self._kernels.out_of_memory(size_B)
        return aside
