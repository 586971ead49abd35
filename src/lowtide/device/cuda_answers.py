"""What `torch.cuda` says of memory while lowtide's arena serves the GPU.

torch's own answers come from its caching allocator; with another allocator active they raise, or speak of one that is
not used. Here the functions below them are replaced, so that every query gets true answers: `memory_allocated`,
`memory_reserved`, `max_memory_*`, `memory_stats`, `memory_summary`, the resets, and those of `torch.accelerator`.

The whole arena counts as reserved once it is: it is one allocation of the device. `mem_get_info` says how many bytes
this process can still be served, since there is nothing for it outside the arena; the total is the device's.
Not run on a GPU yet: tried on a simulated device.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lowtide.device import cuda_allocator
from lowtide.device.cuda_module import CudaModule
from lowtide.errors import BudgetError

Count = dict[str, int]
_NONE: Count = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def memory_stats(module: CudaModule, device: int) -> dict[str, Any]:
    """The nested dictionary that `torch.cuda.memory_stats` flattens; everything is one large pool."""
    seen = module.counts(device)
    seen = seen or dict.fromkeys(("blocks", "bytes", "requested", "active", "active_bytes"), _NONE) | dict.fromkeys(
        ("waits", "retries", "refusals", "capacity_B", "holes", "parked"), 0
    )
    capacity_B, segments = seen["capacity_B"], int(seen["capacity_B"] > 0)
    free_B = capacity_B - seen["active_bytes"]["current"]
    return {
        "allocation": _pools(seen["blocks"]),
        "segment": _pools(_steady(segments)),
        "active": _pools(seen["active"]),
        "inactive_split": _pools(_now(seen["holes"])),
        "allocated_bytes": _pools(seen["bytes"]),
        "reserved_bytes": _pools(_steady(capacity_B)),
        "active_bytes": _pools(seen["active_bytes"]),
        "inactive_split_bytes": _pools(_now(free_B)),
        "requested_bytes": _pools(seen["requested"]),
        "oversize_allocations": dict(_NONE),
        "oversize_segments": dict(_NONE),
        "num_alloc_retries": seen["retries"],
        "num_ooms": seen["refusals"],
        "num_sync_all_streams": seen["retries"],
        "num_device_alloc": segments,
        "num_device_free": 0,
        "num_oom_rejections": 0,
        "max_split_size": -1,
        "reserved_bytes_by_private_pools": {},
    }


def memory_info(module: CudaModule, device: int, free_B: int, total_B: int) -> tuple[int, int]:
    """Bytes that this process can still be served, and the device's total.

    Arguments:
        free_B, total_B: of the device, as its driver says.
    """
    seen = module.counts(device)
    return (free_B if seen is None else seen["capacity_B"] - seen["active_bytes"]["current"], total_B)


@contextlib.contextmanager
def installed(module: CudaModule) -> Iterator[None]:
    """Answers torch's queries from the arena until the context ends."""

    def stats(device: int) -> dict[str, Any]:
        return memory_stats(module, device)

    def info(device: Any = None) -> tuple[int, int]:
        index = cuda_allocator.cuda_index(device)
        return memory_info(module, index, *ask_device(device))

    def refuse(*_: object) -> None:
        raise BudgetError("lowtide's arena is the limit of this GPU's memory: lowtide.install_cuda(budget) sets it")

    with contextlib.ExitStack() as stack:
        ask_device = torch.cuda.mem_get_info
        answers: dict[str, Callable[..., Any]] = {
            "_cuda_memoryStats": stats,
            "_cuda_resetPeakMemoryStats": module.reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": module.reset_sums,
            "_cuda_setMemoryFraction": refuse,
            "_accelerator_getDeviceStats": stats,
            "_accelerator_resetPeakStats": module.reset_peaks,
            "_accelerator_resetAccumulatedStats": module.reset_sums,
        }
        stack.enter_context(cuda_allocator.replaced_answers(answers, mem_get_info=info))
        yield


def _pools(count: Count) -> dict[str, Count]:
    return {"all": dict(count), "large_pool": dict(count), "small_pool": dict(_NONE)}


def _steady(amount: int) -> Count:
    return {"current": amount, "peak": amount, "allocated": amount, "freed": 0}


def _now(amount: int) -> Count:
    return _NONE | {"current": amount, "peak": amount}
