"""Whose bytes a value has: the storage that the program sees, or one that nobody else sees.

A value that is alive has the program's storage, of which only a weak reference is kept, so that its death is the
program's. A value that is rebuilt though the program has let go of it, or whose storage has another content by now,
has a private one. The block of a leaf stays when the program lets go of it, and becomes a private one, for calls that
still read it.

INVARIANT: `by_address` has the present value of every storage that the program sees and that is known. An address is
not used again while a body has a weak reference to it.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch

from lowtide.device import storage as storages
from lowtide.device.arena import Arena, nothing_engaged
from lowtide.eager_engine.ledger import Value

Storage = torch.UntypedStorage
NOWHERE = 0
"""The offset of what lies outside the arena; nothing of the arena is ever asked of it."""


@dataclass(slots=True, eq=False)
class Body:
    """Where one value's bytes are.

    Arguments:
        value: whose.
        address: of the storage.
        weak: a weak reference to the program's storage; 0 for a private one.
        held: a private one.
        aside: in the arena, a copy of one that lies outside it, which others may write to unseen.
        fixed: somebody has its address: it is neither evicted nor moved.
    """

    value: Value
    address: int
    weak: int = 0
    held: Storage | None = None
    aside: Storage | None = None
    fixed: bool = False

    def storage(self) -> Storage | None:
        """The storage, or None when the program has let go of it."""
        if self.held is not None:
            return self.held
        return Storage._new_with_weak_ptr(self.weak)


class Bodies:
    """The bodies of all values of one arena."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.by_address: dict[int, Value] = {}
        self._of: dict[int, Body] = {}
        self._outside: dict[int, Body] = {}  # beside the arena: nobody reports their deaths

    def __getitem__(self, value: Value) -> Body:
        return self._of[value.id]

    def get(self, value: Value) -> Body | None:
        return self._of.get(value.id)

    def of_number(self, number: int) -> Body | None:
        """The body of the value of that id."""
        return self._of.get(number)

    def __iter__(self) -> Iterator[Body]:
        return iter(list(self._of.values()))

    def offset_B(self, storage: Storage) -> int | None:
        """Where a storage lies in the arena; None elsewhere."""
        return storages.home_of(storage, self.arena)

    def show(self, value: Value, storage: Storage, aside: Storage | None = None) -> None:
        """The value is the present content of a storage that the program sees; `aside`: see `Body`."""
        body = Body(value, storage._cdata, cast(int, storage._weak_ref()), aside=aside)
        self._of[value.id] = body
        self.by_address[body.address] = value
        if aside is not None or self.offset_B(storage) is None:
            self._outside[value.id] = body
        self.own(value, storage if aside is None else aside)

    def part(self, value: Value, copy: Storage | None) -> None:
        """The program's storage is its own affair from now on; the value has the copy, if there is one."""
        storage = self._of[value.id].storage()
        if storage is not None:
            if copy is not None:
                bytes_of(copy).copy_(bytes_of(storage))
            self.arena.own(self.offset_B(storage) or NOWHERE, 0)
        self.forget(value)
        if copy is not None:
            self.hide(value, copy)

    def hide(self, value: Value, storage: Storage) -> None:
        """The value has a storage that nobody else sees."""
        self.forget(value)
        self._of[value.id] = Body(value, storage._cdata, held=storage)
        self.own(value, storage)

    def own(self, value: Value, storage: Storage) -> int:
        """Writes the value's number on its block; returns where that lies, `NOWHERE` outside the arena."""
        offset_B = self.offset_B(storage)
        if offset_B is None:
            return NOWHERE
        body = self._of.get(value.id)
        keeps = value.call is None and body is not None and body.weak != 0 and body.aside is None
        self.arena.own(offset_B, value.id, keeps=keeps)
        return offset_B

    def settled(self, value: Value) -> None:
        """The value has become a leaf."""
        storage = self._of[value.id].storage()
        if storage is not None:
            self.own(value, storage)

    def hand_over(self, old: Value, new: Value) -> None:
        """The program's storage of `old` was written: its content is `new` from now on."""
        body = self._of.pop(old.id)
        body.value = new
        self._of[new.id] = body
        self.by_address[body.address] = new
        storage = body.storage()
        if storage is not None:
            self.own(new, storage)

    def is_stale(self, value: Value) -> bool:
        """Whether a storage outside the arena was written since it was copied; O(its bytes)."""
        body = self._of[value.id]
        storage = None if body.aside is None else body.storage()
        if body.aside is None or storage is None:
            return False
        with nothing_engaged():
            return not torch.equal(bytes_of(storage), bytes_of(body.aside))

    @property
    def shared_B(self) -> int:
        """What lies in the arena and has a copy there, since others may write to it."""
        shared = (body for body in self._outside.values() if body.aside is not None)
        storages = (storage for body in shared if (storage := body.storage()) is not None)
        return sum(storage.nbytes() for storage in storages if self.offset_B(storage) is not None)

    def copy_anew(self, value: Value) -> None:
        """Copies what a storage outside the arena holds now."""
        body = self._of[value.id]
        storage = body.storage()
        if body.aside is not None and storage is not None:
            bytes_of(body.aside).copy_(bytes_of(storage))

    def expired(self) -> list[Value]:
        """Values outside the arena that the program has let go of: nobody reports their deaths."""
        return [
            body.value
            for body in self._outside.values()
            if body.weak and body.value.alive and Storage._expired(body.weak)
        ]

    def died(self, value: Value, *, kept: bool) -> None:
        """The program has let go of the value's storage.

        Arguments:
            kept: its block has stayed.
        """
        body = self._of.get(value.id)
        if body is None or not body.weak:
            return
        if self.by_address.get(body.address) is value:
            del self.by_address[body.address]
        Storage._free_weak_ref(body.weak)  # type: ignore[no-untyped-call]
        body.weak = 0
        if body.aside is not None:  # it is the value's own from now on
            body.held, body.aside = body.aside, None
        elif kept:
            body.held = self.arena.adopt(value.offset_B or 0, value.size_B)
            self.own(value, body.held)
        if body.held is None:
            del self._of[value.id]
        else:
            body.address = body.held._cdata
        self._outside.pop(value.id, None)

    def forget(self, value: Value) -> None:
        """The value has no body any more; bytes that only it had are freed."""
        body = self._of.pop(value.id, None)
        self._outside.pop(value.id, None)
        if body is None:
            return
        if body.weak:
            if self.by_address.get(body.address) is value:
                del self.by_address[body.address]
            seen = Storage._new_with_weak_ptr(body.weak)
            Storage._free_weak_ref(body.weak)  # type: ignore[no-untyped-call]
            self._disown(seen)
        self._disown(body.held)
        self._disown(body.aside)

    def _disown(self, storage: Storage | None) -> None:
        offset_B = None if storage is None else self.offset_B(storage)
        if offset_B is not None:
            self.arena.own(offset_B, 0)


def bytes_of(storage: Storage) -> torch.Tensor:
    """A look at all of a storage."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
