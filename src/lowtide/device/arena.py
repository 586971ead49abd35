"""An arena for torch's tensors: a hard budget, planned addresses, and who holds which bytes.

On CPU it is the process's own memory (`_shim/allocator.hpp`), on a GPU a block of torch's own allocator
(`_shim/cuda_tenant/tenant.hpp`).

The address map of an arena, from the bottom: planned places up to `plan_top_B`; the general zone, carved from its high
end; the persistent zone; a zone for requests below 512 B. `_shim/slab.hpp` says how a request finds its place.

Generated code runs a segment between `enter(table)` and `leave()`, and calls `at(i)` before its statement i; a `Table`
holds the planned places. Segments nest, and belong to the thread that entered them.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from lowtide.device import shim, tenant_shim
from lowtide.device.shim_module import ShimModule, SlabHandle
from lowtide.device.tenant_module import TenantModule
from lowtide.errors import ArenaError
from lowtide.ir.layout import ALIGNMENT_B as ALIGNMENT_B
from lowtide.ir.layout import alignment_of

SMALL_B = 512
"""Requests below it are served from the small zone and never planned; as in `_shim/table.hpp`."""


def module_for(device: str) -> ShimModule | TenantModule:
    """The compiled module for a device's memory.

    Arguments:
        device: torch device type, `"cpu"` or `"cuda"`.

    Raises:
        ShimUnavailable: if there is none.
    """
    return tenant_shim.load() if device == "cuda" else shim.load()


class ArenaStats(msgspec.Struct, frozen=True):
    """What an arena holds, and what it did since it was made. Peaks restart with `Arena.reset_peaks`.

    Arguments:
        capacity_B: the hard limit.
        in_use_B, peak_B: bytes of blocks, rounded to the alignment; the most at once.
        requested_B, peak_requested_B: the same as they were asked for.
        low_reach_B, top_reach_B: how far planned places reached up, and how far everything else reached down.
        high_water_B: both together: the address range ever used.
        largest_hole_B, blocks, holes: the address range now.
        requests: allocations served or refused; persistent storages are not among them.
        planned_hits, planned_misses: allocations at their planned place; planned places that no allocation took.
            Counted when a segment ends.
        misplaced_allocations: large allocations within segments that found no planned place.
        small: requests below 512 B.
        overflow: requests served outside the zones meant for them.
        workers, workers_B, workers_peak_B: allocations by threads that did not engage the arena; their bytes now and
            at most.
        spills, spilled_B: requests outside segments that did not fit and, the arena not being strict, were served
            by the stock allocator; their bytes in sum.
        outside, outside_B: allocations that other threads made meanwhile outside every arena, and their bytes in sum.
        failures_for_capacity, failures_for_contiguity: refused requests: too few free bytes; enough, but in pieces.
        by_phase: bytes in use by the phase in which they were asked for; "" where none was set.
    """

    capacity_B: int
    in_use_B: int
    requested_B: int
    peak_B: int
    peak_requested_B: int
    low_reach_B: int
    top_reach_B: int
    high_water_B: int
    largest_hole_B: int
    blocks: int
    holes: int
    requests: int
    planned_hits: int
    planned_misses: int
    misplaced_allocations: int
    small: int
    overflow: int
    workers: int
    workers_B: int
    workers_peak_B: int
    spills: int
    spilled_B: int
    outside: int
    outside_B: int
    failures_for_capacity: int
    failures_for_contiguity: int
    by_phase: dict[str, int]


class Block(msgspec.Struct, frozen=True):
    """One block in use: where, how much, and who asked: a statement of a segment, in a phase, or a worker thread."""

    offset_B: int
    requested_B: int
    reserved_B: int
    statement: str
    phase: str
    worker: bool


class MisplacedAllocation(msgspec.Struct, frozen=True):
    """A large allocation within a segment that found no planned place, and was served by best fit.

    Arguments:
        statement: its index in the segment; -1 before the first.
        name: of the statement.
        size_B: what was asked for.
        reason: `"size"`, no place of that size was left; `"occupied"`, somebody lies there; `"unexpected"`, every place
            of the statement was taken.
        holder: who lies there, if `"occupied"`.
    """

    statement: int
    name: str
    size_B: int
    reason: str
    holder: str


class Table:
    """Where the large allocations of one segment are planned to lie.

    Arguments:
        sizes_B: of each allocation as it is requested, at least `SMALL_B`; statement by statement, in order.
        offsets_B: of each, a multiple of the device's alignment.
        first: entries first[i] .. first[i + 1] belong to statement i.
        names: of the statements, for messages and snapshots.
        device: torch device type of the memory.

    Raises:
        ArenaError: if the four do not fit together.
        ShimUnavailable: if there is no compiled module.
    """

    __slots__ = ("handle", "height_B")

    def __init__(
        self,
        sizes_B: Sequence[int],
        offsets_B: Sequence[int],
        first: Sequence[int],
        names: Sequence[str],
        device: str = "cpu",
    ) -> None:
        module, alignment_B = module_for(device), alignment_of(device)
        with _reported("this table of places is none"):
            self.handle = module.Table(list(sizes_B), list(offsets_B), list(first), list(names), alignment_B)
        self.height_B = self.handle.height_B


def enter(table: Table, /) -> None:
    """Begins a segment in this thread: its large allocations are served at the table's places.

    Raises:
        RuntimeError: if no arena is engaged in this thread, or the table does not fit into it.
    """
    shim.load().enter(table.handle)


def at(statement: int, /) -> None:
    """Says which statement of the segment comes next. Code that says so often takes `fast_at()`."""
    shim.load().at(statement)


def fast_at(device: str = "cpu") -> Callable[[int], None]:
    """The compiled `at`: 25 ns a call.

    Arguments:
        device: torch device type of the arena's memory.

    Raises:
        ShimUnavailable: if there is no compiled module.
    """
    return module_for(device).at


def leave() -> int:
    """Ends the segment; call it in a `finally`.

    Returns: how many allocations lay where they were planned.
    """
    return shim.load().leave()


class Arena:
    """Memory of a fixed size from which the tensors of threads that engage it are served, and none beyond it.

    The memory is reserved at once, and on CPU touched as it is used. It is given back when the arena is closed (or its
    object dies) and the last tensor in it is gone.

    Arguments:
        capacity_B: the hard limit; rounded down to whole alignment units.
        small_zone_B: at the very top, for requests below 512 B; in an arena of values, for single numbers.
        persistent_B: below it, for what persists; see `device.storage.relocate`.
        all_threads: while any thread is engaged, every thread is served from it; otherwise the engaged threads and the
            workers of parallel operators.
        values: on CPU, for programs without a plan: blocks get the numbers of values, the deaths of values are
            reported, and the engine of `lowtide.eager` frees bytes under pressure. `_shim/slab.hpp` says how.
        device: torch device type of the tensors; on `"cuda"`, the current GPU's.

    Raises:
        ArenaError: if the zones do not fit, or the system refuses the memory.
        ShimUnavailable: if there is no compiled module.
    """

    def __init__(
        self,
        capacity_B: int,
        *,
        small_zone_B: int,
        persistent_B: int,
        all_threads: bool = False,
        values: bool = False,
        device: str = "cpu",
    ) -> None:
        self.device, self.alignment_B = device, alignment_of(device)
        module = self._module = module_for(device)
        self.capacity_B = capacity_B // self.alignment_B * self.alignment_B
        self.small_zone_B = self._up(small_zone_B)
        sizes_B = (self.capacity_B, self.alignment_B, self.small_zone_B, self._up(persistent_B))
        with _reported("the arena cannot be made so"):
            self.slab: SlabHandle = (
                tenant_shim.load().Slab(*sizes_B, all_threads)
                if device == "cuda"
                else shim.load().Slab(*sizes_B, all_threads, values)
            )
        self.leave = module.leave
        """Ends the segment of this thread, like the function of that name."""
        self.engage = functools.partial(module.engage, self.slab)
        """Serves this thread's tensors of the device from here, until `disengage`; nests."""
        self.disengage = functools.partial(module.disengage, self.slab)
        """Undoes one `engage` of this thread; with the last one, its segments end too."""

    def enter(self, table: Table) -> None:
        """Begins a segment in this thread, like the function of that name.

        Raises:
            RuntimeError: if no arena is engaged in this thread, or the table does not fit into it.
        """
        self._module.enter(table.handle)

    @contextlib.contextmanager
    def engaged(self) -> Iterator[Arena]:
        """A context that engages this thread."""
        self.engage()
        try:
            yield self
        finally:
            self.disengage()

    @property
    def plan_top_B(self) -> int:
        """Where planned places end; whatever has none is served from there up. Set it before a step."""
        return self.slab.plan_top_B

    @plan_top_B.setter
    def plan_top_B(self, top_B: int) -> None:
        with _reported("the plan does not fit"):
            self.slab.plan_top_B = self._up(top_B)

    @property
    def strict(self) -> bool:
        """Whether code outside segments is refused too when it does not fit, or served past the arena and counted."""
        return self.slab.strict

    @strict.setter
    def strict(self, strict: bool) -> None:
        self.slab.strict = strict

    @property
    def resting(self) -> bool:
        """Whether no plan needs its places now: requests then go to the persistent zone first, else to the low end."""
        return self.slab.resting

    @resting.setter
    def resting(self, resting: bool) -> None:
        self.slab.resting = resting

    @property
    def persistent_B(self) -> int:
        """Size of the zone of persistent storages. A smaller one leaves those beyond it where they are."""
        return self.slab.persistent_B

    @persistent_B.setter
    def persistent_B(self, persistent_B: int) -> None:
        with _reported("the persistent zone does not fit"):
            self.slab.persistent_B = self._up(persistent_B)

    def in_use_below(self, limit_B: int) -> int:
        """Bytes in use below an offset; one look-up where there are none."""
        return self.slab.in_use_within(0, limit_B)

    def set_phase(self, phase: str) -> None:
        """Says what runs from now on, for snapshots and messages: `"between forward and backward"`."""
        self.slab.set_phase(phase)

    @property
    def troubles(self) -> int:
        """Misplaced allocations, refusals and spills so far, for a look at every step; `stats` tells them apart."""
        return self.slab.troubles

    def stats(self) -> ArenaStats:
        """What it holds and did so far. O(blocks)."""
        return ArenaStats(**self.slab.stats())

    def blocks(self) -> tuple[Block, ...]:
        """Every block in use, by address."""
        return tuple(Block(*fields) for fields in self.slab.blocks())

    def misplaced_allocations(self) -> tuple[MisplacedAllocation, ...]:
        """The first 256 misplaced allocations since they were last forgotten, in order."""
        return tuple(MisplacedAllocation(*fields) for fields in self.slab.misplaced_allocations())

    def forget_misplaced_allocations(self) -> None:
        """Empties the list of misplaced allocations; their count goes on."""
        self.slab.forget_misplaced_allocations()

    def reset_peaks(self) -> None:
        """Restarts peaks and reaches from what is in use now."""
        self.slab.reset_peaks()

    def trim(self) -> int:
        """Gives the pages of holes back to the system; the next use of each costs a page fault.

        Returns: bytes of whole pages in holes, touched or not.
        """
        return self.slab.trim()

    def new_place(self, size_B: int) -> torch.UntypedStorage | None:
        """A fresh storage in the zone of persistent storages, its content undefined; None if it does not fit."""
        return self._new(size_B, self._module.PERSISTENT)

    def set_aside(self, size_B: int) -> torch.UntypedStorage | None:
        """Bytes of the general zone that nobody is to use while the storage lives; None if they do not fit."""
        return self._new(size_B, self._module.GENERAL)

    def _new(self, size_B: int, where_B: int) -> torch.UntypedStorage | None:
        storage = torch.UntypedStorage(0, device=self.device)  # type: ignore[no-untyped-call]
        return storage if self._module.fill_at(storage._cdata, size_B, self.slab, where_B) else None

    def _up(self, size_B: int) -> int:
        return -(-size_B // self.alignment_B) * self.alignment_B

    def retire(self) -> None:
        """Like `close`, as soon as no thread is engaged any more."""
        self.slab.close()

    def close(self) -> None:
        """Ends the arena: nothing is served any more, and its memory goes when its last tensor has gone.

        Raises:
            ArenaError: if a thread is engaged with it.
        """
        if self.slab.engagements:
            raise ArenaError("a thread is still engaged with this arena: disengage it, then close")
        self.slab.close()


@contextlib.contextmanager
def nothing_engaged() -> Iterator[None]:
    """A context in which this thread allocates as if it had engaged no arena."""
    modules = [module for module in (shim.loaded(), tenant_shim.loaded()) if module is not None]
    for module in modules:
        module.suspend()
    try:
        yield
    finally:
        for module in modules:
            module.resume()


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError, TypeError) as error:
        raise ArenaError(f"{what}: {error}") from error
