"""What the shim needs of torch, tried in this process before anything relies on it.

A torch that behaves otherwise is refused by the name of the first check that fails, so that no training step finds out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowtide.device.dispatch_modes import no_modes
from lowtide.device.shim_module import ShimModule, SlabHandle

_CAPACITY_B = 2**20
_MESSAGE = "lowtide: self-test of a dropped storage"


def first_failure(shim: ShimModule) -> str:
    """Runs every check in a small arena of its own.

    Returns: what does not behave as expected, in words; empty if everything does.
    """
    with no_modes(), torch.no_grad():
        for check in CHECKS:
            slab = shim.Slab(_CAPACITY_B, 64, 0, _CAPACITY_B // 2, False)
            try:
                if not check(shim, slab):
                    return (check.__doc__ or check.__name__).strip()
            except (RuntimeError, ValueError, AttributeError, TypeError) as error:
                return f"{(check.__doc__ or check.__name__).strip()} ({error})"
            finally:
                slab.close()
    return ""


def _fresh(shim: ShimModule, slab: SlabHandle, count: int = 1000) -> torch.Tensor:
    shim.engage(slab)
    try:
        return torch.arange(count, dtype=torch.float32, device="cpu")
    finally:
        shim.disengage(slab)


def _serves(shim: ShimModule, slab: SlabHandle) -> bool:
    """an engaged thread's tensors lie in its arena, and leave it when they die"""
    tensor = _fresh(shim, slab)
    inside = shim.offset_in(tensor.untyped_storage()._cdata, slab) >= 0
    outside = shim.offset_in(torch.empty(1000, device="cpu").untyped_storage()._cdata, slab) < 0
    del tensor
    return inside and outside and slab.stats()["in_use_B"] == 0 and slab.check() == ""


def _raw(shim: ShimModule, slab: SlabHandle) -> bool:
    """memory without a tensor is served and released too"""
    shim.engage(slab)
    try:
        inside_B = shim.raw_cycles(4096, 2, False)
    finally:
        shim.disengage(slab)
    return inside_B >= 4096 and slab.stats()["in_use_B"] == 0


def _refuses(shim: ShimModule, slab: SlabHandle) -> bool:
    """a request past the arena raises torch.OutOfMemoryError"""
    try:
        _fresh(shim, slab, _CAPACITY_B)
    except torch.OutOfMemoryError as error:
        return "budget" in str(error)
    return False


def _guards(shim: ShimModule, slab: SlabHandle) -> bool:
    """touching dropped bytes raises the message, and restoring ends that"""
    tensor = _fresh(shim, slab)
    view, address, version = tensor[10:20], tensor.untyped_storage()._cdata, tensor._version
    shim.drop(address, _MESSAGE)
    freed = slab.stats()["in_use_B"] == 0 and shim.is_dropped(address)
    raised = [_raises(call) for call in (tensor.sum, view.data_ptr, view.clone, tensor.zero_)]
    shim.restore(address)
    tensor.fill_(3.0)
    return freed and all(raised) and tensor._version == version + 1 and bool((view == 3.0).all())


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError as error:
        return _MESSAGE in str(error)
    return False


def _steals(shim: ShimModule, slab: SlabHandle) -> bool:
    """stolen and moved bytes are seen by views, and no version changes"""
    tensor = _fresh(shim, slab)
    view, version, copy = tensor[1:], tensor._version, tensor.clone()
    address = tensor.untyped_storage()._cdata
    shim.drop(address, _MESSAGE)
    shim.steal(address, copy.untyped_storage()._cdata)
    stolen = bool((view == torch.arange(1, 1000, device="cpu")).all())
    moved = shim.relocate(address, slab, shim.PERSISTENT) and shim.offset_in(address, slab) >= _CAPACITY_B // 2
    return stolen and moved and tensor._version == version and view[0].item() == 1.0 and view[-1].item() == 999.0


CHECKS: tuple[Callable[[ShimModule, SlabHandle], bool], ...] = (_serves, _raw, _refuses, _guards, _steals)
