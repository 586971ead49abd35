"""What the engine of `lowtide.eager` does to storages and to arenas of values, through the compiled module's functions.

The engine does it below Python; here tests look at each part of it alone.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowtide.device import shim
from lowtide.device.arena import Arena
from lowtide.device.storage import GENERAL, PERSISTENT, objection, place_of, relocate, reported, use_count

__all__ = [
    "GENERAL",
    "PERSISTENT",
    "ValueArena",
    "drop",
    "is_dropped",
    "objection",
    "place_of",
    "relocate",
    "restore",
    "steal",
    "use_count",
]


class ValueArena(Arena):
    """An arena of values; blocks hold values by number, and 0 is none."""

    def __init__(self, capacity_B: int) -> None:
        super().__init__(capacity_B, small_zone_B=0, persistent_B=0, values=True)

    def set_pressure(self, relieve: Callable[[int], bool] | None) -> None:
        """Says who frees bytes, inside the operator that asks, when an engaged thread's request finds no place."""
        self.slab.set_pressure(relieve)

    def set_side(self, high: bool) -> None:
        """Says from which end requests are carved; those below 32 KiB come from the high one."""
        self.slab.set_side(high)

    def meter(self) -> None:
        """Begins to keep books of the blocks that are served."""
        self.slab.meter()

    def metered(self) -> list[int]:
        """Sizes from 512 B up, in the order of requests, of blocks served since `meter` that were most together."""
        return self.slab.metered()

    def own(self, offset_B: int, value: int, *, keeps: bool = False) -> bool:
        """Says which value a block holds; with `keeps` it outlives that value. False: no block begins there."""
        return self.slab.own(offset_B, value, keeps)

    def adopt(self, offset_B: int, size_B: int) -> torch.UntypedStorage:
        """A storage for the block of a value that died and was kept."""
        storage = torch.UntypedStorage(0, device="cpu")
        shim.load().take_over(storage._cdata, size_B, self.slab, offset_B)
        return storage

    def owners(self) -> list[tuple[int, int, int, int]]:
        """Every block by address: offset, requested and reserved bytes, and the value that it holds."""
        return self.slab.owners()

    def holes(self) -> list[tuple[int, int]]:
        """Every hole by address: where it begins and where it ends."""
        return self.slab.holes()

    def take_deaths(self) -> list[int]:
        """The values whose storages are gone since the last call, in order; negative ones were kept."""
        return self.slab.take_deaths() if self.slab.has_deaths else []

    def slide_for(self, need_B: int, movable: dict[int, int]) -> tuple[int, int, int]:
        """Slides blocks, given by offset and storage, until there is a hole: slides, bytes moved, its offset or -1."""
        return shim.load().slide_for(self.slab, need_B, movable)


def drop(storage: torch.UntypedStorage, message: str, arena: Arena | None = None, value: int = 0) -> None:
    """Frees a storage's bytes; whoever touches them gets the message. Its death is reported to the arena, if any."""
    with reported():
        if arena is None:
            shim.load().drop(storage._cdata, message)
        else:
            shim.load().drop_value(storage._cdata, message, arena.slab, value)


def restore(storage: torch.UntypedStorage, arena: Arena | None = None, where_B: int = GENERAL) -> bool:
    """Gives fresh bytes to a dropped storage; whether it fitted into that arena."""
    with reported():
        if arena is None:
            shim.load().restore(storage._cdata)
            return True
        return shim.load().restore_at(storage._cdata, arena.slab, where_B)


def steal(target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Gives the bytes of one storage to another of the same size, without a copy; the source is left dropped."""
    with reported():
        shim.load().steal(target._cdata, source._cdata)


def is_dropped(storage: torch.UntypedStorage) -> bool:
    """Whether the storage's bytes were dropped and are not back."""
    return shim.load().is_dropped(storage._cdata)
