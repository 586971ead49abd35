"""Homes for what persists: state that an optimizer makes in its first step is moved to where no plan is in the way.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lowtide.device import storage as storages
from lowtide.device.arena import SMALL_B, Arena

_OWNERS = 2  # of a storage that nobody else sees: one tensor, and the Python object that names the storage here


def bring_home(tensors: Iterable[torch.Tensor], arena: Arena) -> int:
    """Moves tensors into an arena's zone of homes, under everything that refers to them.

    Those that others see through a storage of their own, that are too small to fence anything, or for which there is no
    room, stay where they are.

    Arguments:
        tensors: on CPU; those that lie at home already are left alone.

    Returns: bytes moved.
    """
    moved_B = 0
    home_lo_B = arena.capacity_B - arena.small_zone_B - arena.home_B
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.numel() == 0:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() < SMALL_B or storages.objection(storage) or storages.use_count(storage) > _OWNERS:
            continue
        offset_B = storages.home_of(storage, arena)
        if (offset_B is None or offset_B < home_lo_B) and storages.relocate(storage, arena, storages.HOME):
            moved_B += storage.nbytes()
    return moved_B


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
