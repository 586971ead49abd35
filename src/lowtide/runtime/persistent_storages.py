"""Relocates what outlives a step: parameters and state to the arena's persistent zone, gradients together.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lowtide.device import storage as storages
from lowtide.device.arena import SMALL_B, Arena
from lowtide.device.contributions import aliases_of
from lowtide.ir.layout import rounded_B

_OWNERS = 2  # of a storage that nobody else sees: one tensor, and the Python object that names the storage here


def outside_arena(
    tensors: Iterable[torch.Tensor], arena: Arena | None = None, device: str = "cpu"
) -> list[torch.UntypedStorage]:
    """Storages that could be relocated to the persistent zone, each once.

    Those that others see through a tensor, a view or a numpy array of their own, and those too small to fence anything,
    are left out; so are those in that zone already.

    Arguments:
        tensors: any; only plain ones on the device count.
        arena: whose zone, and device; None before there is one.
        device: torch device type, before there is an arena.
    """
    device = device if arena is None else arena.device
    persistent_lo_B = 0 if arena is None else arena.capacity_B - arena.small_zone_B - arena.persistent_B
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if tensor.device.type != device or tensor.layout is not torch.strided or tensor.numel() == 0:
            continue
        storage = tensor.untyped_storage()
        if (
            storage.nbytes() < SMALL_B
            or storages.objection(storage)
            or storages.use_count(storage) - aliases_of(storage) > _OWNERS
        ):
            continue
        offset_B = None if arena is None else storages.place_of(storage, arena)
        if offset_B is None or offset_B < persistent_lo_B:
            found[storage.data_ptr()] = storage
    return list(found.values())


def bring_in(tensors: Iterable[torch.Tensor], arena: Arena) -> int:
    """Moves tensors into an arena's zone of persistent storages, under everything that refers to them.

    Returns: bytes moved, as the arena reserves them. What does not fit stays where it is.
    """
    moved = (s for s in outside_arena(tensors, arena) if storages.relocate(s, arena, storages.PERSISTENT))
    return sum(rounded_B(storage.nbytes(), arena.alignment_B) for storage in moved)


def send_away(tensors: Iterable[torch.Tensor], arena: Arena) -> int:
    """Moves tensors that lie in an arena out of every arena, under everything that refers to them.

    Returns: bytes moved. What others see through an array of their own stays where it is.
    """
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if tensor.device.type != arena.device:
            continue
        storage = tensor.untyped_storage()
        if not storages.objection(storage) and storages.place_of(storage, arena) is not None:
            found[storage.data_ptr()] = storage
    return sum(s.nbytes() for s in found.values() if storages.relocate(s, None))


def move_together(gradients: Iterable[torch.Tensor], arena: Arena) -> int:
    """Moves gradients that lie below the plan's top to the arena's low end, one after another.

    A plan scatters them, each to the place that was free when it came. While they wait for more to be added they would
    fence the arena; together they take no more than their bytes. Those that somebody else may be looking at, through
    another tensor or a numpy array, are left in place.

    Arguments:
        gradients: `.grad` of parameters.

    Returns: bytes moved.
    """
    found: dict[int, torch.UntypedStorage] = {}
    for gradient in gradients:
        if gradient.device.type != arena.device:
            continue
        storage = gradient.untyped_storage()
        if storage.nbytes() < SMALL_B or storages.objection(storage):
            continue
        if storages.use_count(storage) - aliases_of(storage) > _OWNERS:
            continue
        offset_B = storages.place_of(storage, arena)
        if offset_B is not None and offset_B < arena.plan_top_B:
            found[offset_B] = storage
    moved_B = free_B = 0  # everything below `free_B` is settled
    for block in arena.blocks():
        movable = found.get(block.offset_B)
        if movable is None:
            if block.offset_B >= arena.plan_top_B:
                break
            free_B = block.offset_B + block.reserved_B
        elif block.offset_B == free_B or _slide(movable, arena, block.offset_B, free_B, block.reserved_B):
            moved_B += block.requested_B if block.offset_B != free_B else 0
            free_B += block.reserved_B
        else:
            free_B = block.offset_B + block.reserved_B
    return moved_B


def _slide(storage: torch.UntypedStorage, arena: Arena, from_B: int, to_B: int, size_B: int) -> bool:
    """Moves bytes down; through the general zone where old and new place overlap."""
    if to_B + size_B > from_B and not storages.relocate(storage, arena, storages.GENERAL):
        return False
    if storages.relocate(storage, arena, to_B):
        return True
    storages.relocate(storage, arena, from_B)
    return False


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every tensor of an optimizer's state, also inside lists."""
    found: list[torch.Tensor] = []
    pending: list[object] = list(optimizer.state.values())
    while pending:
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
    return found
