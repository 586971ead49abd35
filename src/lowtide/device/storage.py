"""Relocates the bytes of storages, under everything that sees them, and says where they lie.

Every tensor, view and saved tensor over a storage sees what happens to it; no version counter changes. Only plain
storages are touched: bytes that are shared with numpy or another process, copy-on-write, or made by somebody else
raise StorageError and are left as they are. Nobody may use a storage, a kernel included, while it is operated on. What
evicts and rematerialises bytes is the engine of `lowtide.eager`, by the same compiled functions (`_shim/surgery.hpp`).

Storages are given as `tensor.untyped_storage()`, or, on CPU, by its address `_cdata` if the caller keeps it alive.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lowtide.device.arena import Arena, module_for
from lowtide.device.shim_module import ShimModule
from lowtide.device.tenant_module import TenantModule
from lowtide.errors import StorageError

Storage = torch.UntypedStorage | int
GENERAL = -1
"""A place by best fit, outside planned places and the persistent zone."""
PERSISTENT = -2
"""A place in the zone of persistent storages."""


def number_of_storage(tensor: torch.Tensor) -> int:
    """Tells the storage of a tensor from all others for as long as it lives.

    Raises:
        NotImplementedError: if it has none: sparse and opaque layouts.
    """
    number: int = tensor.untyped_storage()._cdata
    return number


class Identity:
    """Tells one storage from all others, wherever its bytes lie: while this lives, no other gets its number."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.number: int = storage._cdata

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


def identity_of(thing: object) -> Identity | None:
    """The identity of the bytes of a tensor; None for anything else, and for tensors without bytes of their own."""
    if not isinstance(thing, torch.Tensor) or thing.layout is not torch.strided:
        return None
    storage = thing.untyped_storage()
    return Identity(storage) if storage.nbytes() else None


def relocate(storage: Storage, arena: Arena | None, where_B: int = GENERAL) -> bool:
    """Copies a storage's bytes to another place and frees the old one.

    Arguments:
        storage: has bytes.
        arena: where they go; None: out of every arena.
        where_B: an offset in that arena, `GENERAL` or `PERSISTENT`.

    Returns: whether it fitted; if not, nothing has changed.

    Raises:
        StorageError: if its bytes are not the storage's own, or were dropped.
    """
    with reported():
        return _module(storage).relocate(_address(storage), None if arena is None else arena.slab, where_B)


def objection(storage: Storage) -> str:
    """Why a storage's bytes may not be dropped or moved; empty if they may."""
    return _module(storage).objection(_address(storage))


def place_of(storage: Storage, arena: Arena) -> int | None:
    """The offset of a storage's bytes in an arena; None if they lie elsewhere, or were dropped."""
    offset_B = module_for(arena.device).offset_in(_address(storage), arena.slab)
    return None if offset_B < 0 else offset_B


def use_count(storage: Storage) -> int:
    """How many owners a storage has: tensors, views, saved tensors, and the Python object if there is one."""
    return _module(storage).use_count(_address(storage))


def _module(storage: Storage) -> ShimModule | TenantModule:
    return module_for("cpu" if isinstance(storage, int) else storage.device.type)


def _address(storage: Storage) -> int:
    return storage if isinstance(storage, int) else storage._cdata


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """What compiled code refuses to do with a storage is a `StorageError`."""
    try:
        yield
    except ValueError as error:
        raise StorageError(f"{error}; it is unchanged") from error


def is_made_of_others(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no bytes of its own but those of tensors in it, as a DTensor or a quantized weight."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))
