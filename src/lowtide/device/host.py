"""Host memory for what leaves a device: one pool of a fixed size, from which tensors take exactly what they need.

torch's own pinned memory rounds every block up to a power of two and keeps it; here a block takes its bytes, rounded
up to a granule, and gives them back when the last tensor over it dies. The pool is a hard limit: it is reserved at
once, and what does not fit is refused. Where CUDA is in use, what blocks take of the pool is registered with it, a
stretch at a time as they reach there, so that copies overlap with kernels; elsewhere it is locked into memory as far
as the system allows. `pinning` says which. A tensor that a copy engine still reads or writes has to be kept until it
has ended: the pool knows nothing of streams.

Which offset a block gets is decided by the core's arena (`src/core/arena.hpp`): best fit. Registering with CUDA was not
run on a GPU yet.

Units: `_B` bytes.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import torch

from lowtide._core import Arena
from lowtide.errors import ArenaError
from lowtide.units import format_B

PAGE_B = mmap.PAGESIZE
Pinning = Literal["registered", "locked", "pageable"]
_STRETCH_B = 2**26  # that is registered at once: a call costs milliseconds, and keeps its pages from everybody
_ON_FAULT = 1  # of mlock2(2): pages are locked as they are touched


class HostStats(msgspec.Struct, frozen=True):
    """What a pool holds, and how it did.

    Arguments:
        budget_B: the hard limit.
        in_use_B, peak_B: bytes of blocks in whole granules, now and at most.
        requested_B: the same as they were asked for.
        largest_hole_B: the largest tensor that could still be served.
        blocks: in use.
        allocations: served so far.
        refusals: requests that did not fit.
    """

    budget_B: int
    in_use_B: int
    peak_B: int
    requested_B: int
    largest_hole_B: int
    blocks: int
    allocations: int
    refusals: int


class HostPool:
    """Host memory of a fixed size for tensors that are offloaded from a device.

    The memory is given back when the pool is closed, or its object dies, and the last tensor in it is gone.

    Arguments:
        budget_B: the hard limit.
        pin: whether to ask for pinned memory, of what blocks use; `pinning` says what came of it.
        granule_B: to which blocks are rounded up, a power of two; the budget is rounded down to it.

    Raises:
        ArenaError: if it is less than a granule, or the system or CUDA refuses it.
    """

    def __init__(self, budget_B: int, *, pin: bool = True, granule_B: int = PAGE_B) -> None:
        self.budget_B = budget_B // granule_B * granule_B
        if self.budget_B <= 0:
            raise ArenaError(f"a host pool of {budget_B} B: its blocks have {granule_B} B at least")
        self._arena = Arena(self.budget_B, granule_B)
        self._lock = threading.Lock()
        self._refusals = 0
        try:
            self._memory: mmap.mmap | None = mmap.mmap(-1, self.budget_B, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise ArenaError(f"the system refuses {format_B(self.budget_B)} for a host pool: {error}") from error
        self._registrar = _registrar() if pin else None
        self._registered: set[int] = set()  # stretches, by number
        self.pinning: Pinning = "registered"
        if self._registrar is None:
            self.pinning = _locked(self._memory, self.budget_B) if pin else "pageable"

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A contiguous tensor of undefined content; views and `.set_` keep its bytes alive, as with any storage.

        Arguments:
            shape: of the tensor.
            dtype: of its elements.

        Raises:
            torch.OutOfMemoryError: if they do not fit into the pool.
            ArenaError: if the pool is closed.
        """
        count = math.prod(shape)
        size_B = count * dtype.itemsize
        if size_B == 0:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        bytes_ = self._block(size_B)
        return torch.frombuffer(bytes_, dtype=dtype, count=count).view(tuple(shape))

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A place for a tensor's content: its shape, dtype and, if it has no holes, its strides."""
        if tensor.layout is not torch.strided:
            raise ArenaError(f"a host pool holds strided tensors, not {tensor.layout}")
        flat = self.empty((tensor.numel(),), tensor.dtype)
        dense = torch.empty_like(tensor, device="meta")  # keeps the strides where there are no holes
        return flat.as_strided(tensor.shape, dense.stride())

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's bytes lie here."""
        memory = self._memory
        if memory is None or tensor.device.type != "cpu" or tensor.numel() == 0:
            return False
        return 0 <= tensor.untyped_storage().data_ptr() - _address(memory) < self.budget_B

    def stats(self) -> HostStats:
        """What it holds and did so far."""
        now = self._arena.statistics()
        return HostStats(
            budget_B=self.budget_B,
            in_use_B=now.in_use_B,
            peak_B=now.peak_in_use_B,
            requested_B=now.requested_B,
            largest_hole_B=now.largest_hole_B,
            blocks=now.blocks,
            allocations=now.allocations,
            refusals=self._refusals,
        )

    def close(self) -> None:
        """Ends the pool: nothing is served any more, and its memory goes with its last tensor."""
        self._memory = None

    @property
    def pinned_B(self) -> int:
        """Bytes that are registered with CUDA now."""
        return sum(min(_STRETCH_B, self.budget_B - i * _STRETCH_B) for i in self._registered)

    def _register(self, memory: mmap.mmap, offset_B: int, size_B: int) -> None:
        """Registers the stretches that a block lies in, for as long as the memory exists. The lock is held.

        Raises:
            ArenaError: if CUDA refuses it.
        """
        if self._registrar is None:
            return
        for stretch in range(offset_B // _STRETCH_B, -(-(offset_B + size_B) // _STRETCH_B)):
            if stretch in self._registered:
                continue
            address = _address(memory) + stretch * _STRETCH_B
            length_B = min(_STRETCH_B, self.budget_B - stretch * _STRETCH_B)
            status = self._registrar.cudaHostRegister(address, length_B, 0)
            if int(status) != 0:
                raise ArenaError(
                    f"CUDA refuses to pin {format_B(length_B)} of host memory besides {format_B(self.pinned_B)}: "
                    f"{status}. Make the host budget smaller."
                )
            self._registered.add(stretch)
            weakref.finalize(memory, self._registrar.cudaHostUnregister, address).atexit = False

    def _block(self, size_B: int) -> ctypes.Array[ctypes.c_char]:
        """Bytes that are free again when nobody refers to them."""
        with self._lock:
            memory = self._memory
            if memory is None:
                raise ArenaError("this host pool is closed: make a new one")
            offset_B = self._arena.allocate(size_B)
            if offset_B is None:
                self._refusals += 1
                now = self._arena.statistics()
                raise torch.OutOfMemoryError(
                    f"lowtide: the host pool of {format_B(self.budget_B)} is spent: {format_B(size_B)} were asked for, "
                    f"{format_B(now.in_use_B)} are in use and the largest hole is {format_B(now.largest_hole_B)}. "
                    "Make the pool larger, or offload less."
                )
            try:
                self._register(memory, offset_B, size_B)
            except BaseException:
                self._arena.free(offset_B)
                raise
        block = (ctypes.c_char * size_B).from_buffer(memory, offset_B)
        weakref.finalize(block, self._arena.free, offset_B).atexit = False
        return block


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _registrar() -> Any:
    """The CUDA runtime, where it is in use."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _locked(memory: mmap.mmap, size_B: int) -> Pinning:
    """Locks pages as they are touched, as far as the system allows."""
    lock = getattr(ctypes.CDLL(None), "mlock2", None)
    if lock is None:
        return "pageable"
    lock.argtypes, lock.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return "locked" if lock(_address(memory), size_B, _ON_FAULT) == 0 else "pageable"
