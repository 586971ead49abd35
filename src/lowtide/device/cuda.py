"""A GPU's memory under a hard budget: `install_cuda`, and the level at which a budget is kept.

A fitted model's arena is a tenant of torch's allocator (`device/tenant_shim.py`), and its budget enforced. This file
is about the two other ways. *planned*: lowtide's arena is the process's CUDA allocator, chosen before the first use
of CUDA. *capped*: torch's own caching allocator with a limit on what it reserves, where there is no tenant.
*accounted*: nothing is limited. Not run on a GPU yet: the allocator was driven through torch's own pluggable
interface on a simulated device, and capping was tried with a simulated limit.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass
from typing import Literal

import torch

from lowtide.device import cuda_allocator, cuda_answers, cuda_shim
from lowtide.device.cuda_module import CudaModule
from lowtide.errors import ArenaError, BudgetError, ShimUnavailable
from lowtide.units import Budget, format_B, parse_budget

Level = Literal["planned", "capped", "accounted"]
ALIGNMENT_B = 512
EVERY_DEVICE = -1
_UNIT_B = 2**21  # in which a driver gives out memory
_MOST_SMALL_B, _SMALL_PART = 2**23, 64
_LOG = logging.getLogger("lowtide")
NOT_HELD = "what torch's allocator loses to fragmentation, and workspaces that cuBLAS, cuBLASLt and cuDNN keep"
"""What a capped budget counts and no plan leaves space for: a step may be refused for it in its middle."""
_lock = threading.Lock()
_capped: dict[int, _Cap] = {}
_answers = contextlib.ExitStack()
_installed: CudaModule | None = None


@dataclass(frozen=True)
class _Cap:
    """A limit of torch's own allocator on one GPU, whose it is, and the share that was allowed before."""

    budget_B: int
    owner: object
    before: float


def install_cuda(budget: int | float | str | Budget) -> None:
    """Makes lowtide's arena the allocator of every GPU that this process uses, for the rest of the process.

    Call it before anything touches CUDA. On each GPU the whole budget is reserved with the first tensor, and nothing is
    served past it: `torch.OutOfMemoryError` says who asked for how much. `torch.cuda.memory_*` give true answers.
    CUDA graphs, `torch.cuda.MemPool` and sharing GPU tensors with other processes are refused.

    Arguments:
        budget: bytes, `"6GiB"`, or `"60%"` of each GPU's memory; at least 2 MiB.

    Raises:
        BudgetError: if it cannot be read, or is relative to a plain step.
        ShimUnavailable: if this torch is built without CUDA, or there is no compiler.
        ArenaError: if CUDA is in use already, or another allocator was chosen.
    """
    global _installed
    wanted = parse_budget(budget)
    if wanted.of_plain is not None:
        raise BudgetError('"of plain" is about one model: install_cuda takes bytes, "6GiB" or "60%" of the GPU')
    if wanted.size_B is not None and wanted.size_B < _UNIT_B:
        raise BudgetError(f"a budget of {format_B(wanted.size_B)} is below the 2 MiB in which a GPU gives out memory")
    if torch.version.cuda is None:
        raise ShimUnavailable(f"torch {torch.__version__} is built without CUDA: install one that is, or do without")
    with _lock:
        if _installed is not None:
            raise ArenaError("lowtide's arena is this process's CUDA allocator already: its budget is set once")
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ArenaError("CUDA is in use already: call lowtide.install_cuda before the first GPU tensor is made")
        module = prepared(wanted)
        try:
            cuda_allocator.change_cuda_allocator(module.__file__, module.entries())
        except RuntimeError as error:
            raise ArenaError(f"torch does not let its CUDA allocator be changed here: {error}") from error
        _answers.enter_context(cuda_answers.installed(module))
        _installed = module
    _LOG.info("lowtide's arena serves every GPU of this process, %s each", wanted)


def prepared(budget: Budget) -> CudaModule:
    """The compiled module with the runtime that torch has loaded, and a budget for every GPU.

    Raises:
        ShimUnavailable: if there is no compiler, or no CUDA runtime is loaded.
        ArenaError: if a GPU's memory is reserved already.
    """
    module = cuda_shim.load()
    try:
        module.use_runtime("")
    except RuntimeError as error:
        raise ShimUnavailable(str(error)) from error
    size_B, share = budget.size_B or 0, budget.of_device or 0.0
    small_B = min(_MOST_SMALL_B, size_B // _SMALL_PART) if size_B else _MOST_SMALL_B
    try:
        module.set_budget(EVERY_DEVICE, size_B, share, small_B // ALIGNMENT_B * ALIGNMENT_B)
    except (RuntimeError, ValueError) as error:
        raise ArenaError(str(error)) from error
    return module


def active_module() -> CudaModule | None:
    """The module that serves this process's GPUs; None where torch's own allocator does."""
    return _installed


def level(device: int = 0) -> Level:
    """How a budget on a GPU is kept now."""
    if _installed is not None:
        return "planned"
    return "capped" if device in _capped else "accounted"


def kind_of(budget_B: int, device: int = 0) -> str:
    """How a model's budget is kept, as a plan's `budget_kind`.

    The arena enforces what `install_cuda` was given, for the whole process. A model's budget below that is accounted
    only: its plan stays inside it, but code outside the plan is not refused until the arena is full.
    """
    if _installed is None:
        return "capped"
    arena = _installed.slab(device)  # reserves it, should this be its first use
    return "enforced" if arena.stats()["capacity_B"] <= budget_B else "accounted"


def cap(budget_B: int, owner: object, device: int = 0) -> None:
    """Limits what torch's own caching allocator may reserve on a GPU; a later call of the owner may change it.

    Arguments:
        budget_B: at most the device's memory.
        owner: whose limit it is, until `uncap`.

    Raises:
        BudgetError: if the device has less, or its limit is somebody else's.
        ArenaError: if lowtide's arena serves the GPU: it is the limit.
    """
    if _installed is not None:
        raise ArenaError("lowtide's arena is the limit of this GPU's memory: a cap would be a second one")
    total_B = torch.cuda.get_device_properties(device).total_memory
    if budget_B > total_B:
        raise BudgetError(f"a budget of {format_B(budget_B)} is more than the {format_B(total_B)} of this GPU")
    with _lock:
        found = _capped.get(device)
        if found is not None and found.owner is not owner:
            raise BudgetError(
                f"the memory of GPU {device} is limited to {format_B(found.budget_B)} for another fitted model, and "
                "torch's allocator has one limit: call lowtide.unfit(that model) first, let both share a budget with "
                'lowtide.fit(model, share=that model), or say scope="none" here'
            )
        before = torch.cuda.get_per_process_memory_fraction(device) if found is None else found.before
        torch.cuda.set_per_process_memory_fraction(budget_B / total_B, device)
        _capped[device] = _Cap(budget_B, owner, before)


def uncap(owner: object) -> None:
    """Gives back the limits that are this owner's: torch's allocator may reserve again what it might before."""
    with _lock:
        for device in [d for d, found in _capped.items() if found.owner is owner]:
            torch.cuda.set_per_process_memory_fraction(_capped.pop(device).before, device)


def held_B(device: int | None = None) -> dict[str, int]:
    """Bytes that the allocator of a GPU serves this process now, at most so far, and reserved at most."""
    return {
        "in_use_B": int(torch.cuda.memory_allocated(device)),
        "peak_B": int(torch.cuda.max_memory_allocated(device)),
        "reserved_B": int(torch.cuda.max_memory_reserved(device)),
    }
