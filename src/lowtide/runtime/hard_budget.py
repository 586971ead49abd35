"""The arena of one session, and the windows in which the calling thread allocates from it.

A window opens when a segment begins. After a forward it stays open for the caller's own code, until the backward
is done or can no longer come: every forward hands a lease on to its backward, and the last lease to die closes
the window. Outside, torch's own allocator serves as ever. Where autograd would run a backward on a thread of its own,
which knows of no window, it runs it on the caller's for as long as one is open.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lowtide.device import arena as arenas
from lowtide.device import calling_thread
from lowtide.device import storage as storages
from lowtide.device.arena import Arena
from lowtide.device.engine_passes import backward_is_retained
from lowtide.errors import InfeasibleBudget
from lowtide.ir.layout import LiveBlock, rounded_B
from lowtide.ir.replay import ReplayTable
from lowtide.units import format_B

BETWEEN = "code between lowtide's segments"
AFTER = "code outside the step"
_NUMBER = itertools.count(1)
_ENGINE_THREADS = frozenset({"cuda"})  # device types whose backwards autograd runs on threads of its own
Replacement = Callable[[int, tuple[LiveBlock, ...], frozenset[int], bool], tuple[arenas.Table, int]]


@dataclass(eq=False)
class HardBudget:
    """One arena and the threads that have passed into it.

    Arguments:
        arena: as large as the budget leaves.
        budget_B: of which the arena is a part.
        outside_B: of the budget, what lies outside the arena for good: parameters and buffers that cannot be relocated.
        begun: names of the graphs of the step that began last.
    """

    arena: Arena
    budget_B: int
    outside_B: int = 0
    begun: tuple[object, ...] = ()
    _free: torch.UntypedStorage | None = None
    _free_B: int = 0
    _open: dict[int, int] = field(default_factory=dict)  # leases that are alive, and the threads they belong to
    _promised: dict[int, tuple[LiveBlock, ...]] = field(default_factory=dict)  # where their backwards will allocate
    _resting: int | None = None  # the thread that rests
    _standing: int | None = None  # the thread whose window stays open throughout
    _top_B: int = 0  # height of the plan that ran last
    _step: int = 0  # the step to which the segment belongs that ran last
    _turns: int = 0  # how often the next segment belonged to another one
    _strays: bool = False  # whether the next forward belongs to another plan than the step that began last

    def live_blocks(self, below_B: int, promises: bool = True) -> tuple[LiveBlock, ...]:
        """What lies below an offset, by address: tensors that outlived the step that made them.

        Arguments:
            promises: also the places that backwards which are still to come will use.
        """
        found: list[LiveBlock] = []
        if self.arena.in_use_below(below_B):
            for block in self.arena.blocks():
                if block.offset_B >= below_B:
                    break
                found.append(LiveBlock(block.offset_B, min(block.reserved_B, below_B - block.offset_B)))
        if promises:
            waiting = (o for places in self._promised.values() for o in places if o.offset_B < below_B)
            found += (LiveBlock(o.offset_B, min(o.size_B, below_B - o.offset_B)) for o in waiting)
        return united(found)

    @property
    def is_awaited(self) -> bool:
        """Whether a backward may still come for which places are kept."""
        return any(self._promised.values())

    def begin_step(self, graphs: tuple[object, ...] = ()) -> None:
        """A step begins: the leases of its forwards belong to it.

        Arguments:
            graphs: what names its graphs.
        """
        self.begun = graphs
        self._step = next(_NUMBER)
        self._turns += 1

    def stray(self) -> None:
        """A later part of an earlier step runs, though another step has begun: its places may be taken."""
        self._strays = True

    def took_stray(self) -> bool:
        """Whether the forward that begins is such a part."""
        strays, self._strays = self._strays, False
        return strays

    @property
    def present(self) -> tuple[int, int]:
        """What a lease remembers: its step, and what `resume` compares."""
        return self._step, self._turns

    def resume(self, step: int, turns: int, *, retained: bool) -> bool:
        """A backward begins.

        Arguments:
            step, turns: what its lease remembers.
            retained: whether what it was given outlives it, as in a retained graph.

        Returns: whether others have run since its forward, so that its places may be taken.
        """
        if step != self._step:
            self._step = step
            self._turns += 1
        disturbed = turns != self._turns
        self._turns += retained
        return disturbed

    def rest(self, name: str) -> None:
        """Begins a stretch of the caller's code that allocates inside the budget while no plan needs its places."""
        self.wake()
        self._resting = threading.get_ident()
        self._open_window()
        self.arena.plan_top_B = self._top_B
        self.arena.resting = True
        self.arena.set_phase(name)

    def wake(self) -> None:
        """Ends that stretch; a segment does so too, where code that raised never came to the end."""
        owner, self._resting = self._resting, None
        if owner is None:
            return
        self.arena.resting = False
        self.arena.set_phase(AFTER)
        self._close_window(owner)

    @contextlib.contextmanager
    def rested(self, name: str) -> Iterator[None]:
        """Inside, the caller's code allocates in the arena while no plan needs its places."""
        self.rest(name)
        try:
            yield
        finally:
            self.wake()

    def keep_free(self, size_B: int, top_B: int = 0) -> None:
        """Keeps bytes of the arena free for what lies outside it and counts.

        Arguments:
            top_B: height of the plan that is to run: above it, if that can be.

        Raises:
            InfeasibleBudget: if tensors of earlier steps leave fewer bytes than that; it names a budget that has it.
        """
        if size_B == self._free_B:
            return
        self._free, self._free_B = None, 0
        if size_B:
            self.arena.plan_top_B = max(top_B, self._top_B) if self._open else top_B
            self._free = self.arena.set_aside(size_B)
            if self._free is None and not self._open:
                self.arena.plan_top_B = 0
                self._free = self.arena.set_aside(size_B)
            if self._free is None:
                enough_B = self.budget_B + rounded_B(
                    size_B, self.arena.alignment_B
                )  # with so much more, the same tensors leave that free
                raise InfeasibleBudget(
                    f"the inputs of this step take {format_B(size_B)} of the budget of {format_B(self.budget_B)}, and "
                    "tensors of earlier steps, or of forwards that wait for their backwards, leave no space for them. "
                    "Set outputs and gradients that are no longer needed to None, or raise the budget, to "
                    f"budget={enough_B} at least.",
                    budget_B=self.budget_B,
                    smallest_B=enough_B,
                )
            self._free_B = size_B

    def free_place(self, below_B: int) -> None:
        """Releases what is kept free where it lies below an offset; the next segment keeps it elsewhere."""
        if self._free is not None and (storages.place_of(self._free, self.arena) or 0) < below_B:
            self.keep_free(0)

    def stand(self) -> None:
        """Keeps this thread's window open until the budget is retired, whatever happens inside."""
        self._standing = threading.get_ident()
        self._open_window()

    def retire(self) -> None:
        """Releases the arena: it ends when no window is open and its last tensor is gone."""
        self.wake()
        owner, self._standing = self._standing, None
        if owner is not None:
            self._close_window(owner)
        self._free, self._free_B = None, 0
        self.arena.retire()

    def opened(self, number: int, promise: tuple[LiveBlock, ...]) -> None:
        """A lease was made, for a backward that will allocate at the places promised."""
        self._open[number] = threading.get_ident()
        self._promised[number] = promise
        self._open_window()
        self.arena.plan_top_B = self._top_B  # the backward is going to need its places

    def passed(self, number: int) -> None:
        """A lease died."""
        owner = self._open.pop(number, None)
        self._promised.pop(number, None)
        if owner is not None:  # else abandoned before
            self._close_window(owner)

    def abandon(self) -> None:
        """Closes every window of this thread: a segment raised, and its traceback may keep leases alive for long."""
        mine = threading.get_ident()
        for number in [n for n, owner in self._open.items() if owner == mine]:
            self.passed(number)

    def begin(self, top_B: int) -> None:
        """A segment of a plan of that height begins on this thread."""
        self.wake()
        catch_up()
        self._top_B = max(top_B, self.arena.plan_top_B) if self._open else top_B
        self._open_window()
        self.arena.plan_top_B = self._top_B

    def end(self) -> None:
        """The segment has returned; without a lease nobody needs the plan's places any more."""
        self.arena.set_phase(BETWEEN if self._open else AFTER)
        self._close_window(threading.get_ident())

    def _open_window(self) -> None:
        self.arena.engage()
        if self.arena.device in _ENGINE_THREADS:
            calling_thread.hold()

    def _close_window(self, owner: int) -> None:
        if not self._open:
            self.arena.plan_top_B = 0
        if owner == threading.get_ident():
            _leave_window(self.arena)
        else:
            _LATE.append((owner, self.arena))


_LATE: list[tuple[int, Arena]] = []  # windows that are to close on a thread, where another thread learnt it


def catch_up() -> None:
    """Closes the windows of this thread whose end another thread has met."""
    if not _LATE:
        return
    mine = threading.get_ident()
    for entry in [e for e in _LATE if e[0] == mine]:
        _LATE.remove(entry)
        _leave_window(entry[1])


def _leave_window(arena: Arena) -> None:
    arena.disengage()
    if arena.device in _ENGINE_THREADS:
        calling_thread.release()


class BackwardLease:
    """Keeps the window of the thread that made it open for as long as it lives; `origin` says which step it is of."""

    def __init__(self, hard_budget: HardBudget, promise: tuple[LiveBlock, ...] = ()) -> None:
        self._hard_budget, self._number = hard_budget, next(_NUMBER)
        self.origin = hard_budget.present
        hard_budget.opened(self._number, promise)

    def __del__(self) -> None:
        self._hard_budget.passed(self._number)


@dataclass(frozen=True, eq=False)
class PlacedSegments:
    """How one plan's segments allocate.

    Arguments:
        hard_budget: where.
        tables: per segment, which allocation goes where.
        height_B: of the layout: what the plan leaves alone begins here.
        concurrent_B: bytes of the step's inputs that lie outside the arena: as much of it stays empty.
        places: per segment, where it allocates.
        carried: per segment, where the plan put what earlier segments made and this one may release.
        numbers: per segment, its index in the graph that the plan is of.
        replacement: gives another table, and its height, for a segment by its number: around what is taken (all but
            what was carried and is released as planned), given which of that is so, and whether the graph is retained.
    """

    hard_budget: HardBudget
    tables: tuple[arenas.Table, ...]
    height_B: int
    concurrent_B: int = 0
    places: tuple[tuple[LiveBlock, ...], ...] = ()
    carried: tuple[frozenset[int], ...] = ()
    numbers: tuple[int, ...] = ()
    replacement: Replacement | None = None

    def run(
        self,
        segment: int,
        code: Callable[[list[Any]], Sequence[Any]],
        arguments: list[Any],
        lease: BackwardLease | None = None,
        slots: int = 0,
    ) -> Sequence[Any]:
        """Runs a segment's code with its allocations served as planned.

        Arguments:
            lease: for a backward, what its forward handed on; None if that was lost.
            slots: how many of the arguments the forward handed on.

        Raises:
            InfeasibleBudget: if others have taken the places of a backward, and there is no space elsewhere.
        """
        table, height_B = self.tables[segment], self.height_B
        strays = segment == 0 and self.hard_budget.took_stray()
        if segment == 0:
            self.hard_budget.keep_free(self.concurrent_B, self.height_B)
        if self.replacement is not None and (segment > 0 or strays):
            table, height_B = self._around(segment, arguments, lease, slots)
        self.hard_budget.begin(height_B)
        try:
            self.hard_budget.arena.enter(table)
            try:
                return code(arguments)
            except BaseException:
                self.hard_budget.abandon()
                raise
            finally:
                self.hard_budget.arena.leave()
        finally:
            self.hard_budget.end()

    def _around(
        self, segment: int, arguments: list[Any], lease: BackwardLease | None, slots: int
    ) -> tuple[arenas.Table, int]:
        """The table of a segment: the planned one, unless somebody lies where it is going to allocate."""
        retained = segment > 0 and backward_is_retained()
        device = self.hard_budget.arena.device
        step, turns = (0, 0) if lease is None else lease.origin
        if not self.hard_budget.resume(step, turns, retained=retained) and not retained:
            return self.tables[segment], self.height_B
        given = {
            storages.place_of(a.untyped_storage(), self.hard_budget.arena)
            for a in itertools.islice(arguments, slots)
            if isinstance(a, torch.Tensor) and a.layout is torch.strided and a.device.type == device
        }
        passing = frozenset() if retained else frozenset(o for o in self.carried[segment] if o in given)
        blocks = [b for b in self.hard_budget.arena.blocks() if b.offset_B not in passing]
        taken = united(LiveBlock(b.offset_B, b.reserved_B) for b in blocks)
        if not _touch(taken, self.places[segment]):
            return self.tables[segment], self.height_B
        assert self.replacement is not None
        return self.replacement(self.numbers[segment], taken, passing, retained)

    def part(self, segments: Iterable[int]) -> PlacedSegments:
        """The same for some of the segments: one graph of several."""
        chosen = list(segments)
        return replace(
            self,
            tables=tuple(self.tables[s] for s in chosen),
            places=tuple(self.places[s] for s in chosen),
            carried=tuple(self.carried[s] for s in chosen),
            numbers=tuple(self.numbers[s] for s in chosen),
        )

    def lease(self) -> BackwardLease:
        """What a forward hands on to its backward."""
        return BackwardLease(self.hard_budget, united(o for places in self.places[1:] for o in places))


def united(live_blocks: Iterable[LiveBlock]) -> tuple[LiveBlock, ...]:
    """The same bytes as disjoint stretches, by address."""
    found: list[LiveBlock] = []
    for one in sorted(live_blocks, key=lambda o: o.offset_B):
        last = found[-1] if found else None
        if last is None or one.offset_B > last.offset_B + last.size_B:
            found.append(one)
        else:
            end_B = max(last.offset_B + last.size_B, one.offset_B + one.size_B)
            found[-1] = LiveBlock(last.offset_B, end_B - last.offset_B)
    return tuple(found)


def _touch(one: Sequence[LiveBlock], other: Sequence[LiveBlock]) -> bool:
    """Whether two lists of disjoint stretches, each by address, share a byte."""
    i = j = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        if a.offset_B + a.size_B <= b.offset_B:
            i += 1
        elif b.offset_B + b.size_B <= a.offset_B:
            j += 1
        else:
            return True
    return False


def places_of(tables: Sequence[ReplayTable], alignment_B: int) -> tuple[tuple[LiveBlock, ...], ...]:
    """Per segment, the stretches of an arena of that alignment that it uses."""
    return tuple(
        united(LiveBlock(o, rounded_B(s, alignment_B)) for o, s in zip(t.offsets_B, t.sizes_B, strict=True) if o >= 0)
        for t in tables
    )


def make_tables(tables: Sequence[ReplayTable], device: str) -> tuple[arenas.Table, ...]:
    """Hands the tables to the code of that device's arenas."""
    return tuple(arenas.Table(t.sizes_B, t.offsets_B, t.first, t.names, device) for t in tables)
