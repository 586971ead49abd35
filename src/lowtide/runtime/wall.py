"""The arena of one session, and the windows in which the calling thread allocates from it.

A window opens when a segment begins. After a forward it stays open round the caller's own code, until the backward
is done or can no longer come: every forward hands a passage on to its backward, and the last passage to die closes
the window. Outside, torch's own allocator serves as ever.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device import arena as arenas
from lowtide.device.arena import Arena
from lowtide.errors import InfeasibleBudget
from lowtide.ir.layout import Obstacle
from lowtide.ir.replay import ReplayTable
from lowtide.units import format_B

BETWEEN = "code between lowtide's segments"
AFTER = "code outside the step"
_NUMBER = itertools.count(1)


@dataclass(eq=False)
class Wall:
    """One arena and the threads that have passed into it.

    Arguments:
        arena: as large as the budget leaves.
        budget_B: of which the arena is a part.
        scope: "step", or "process" to leave the window open from the first step on.
    """

    arena: Arena
    budget_B: int
    scope: str = "step"
    _free: torch.UntypedStorage | None = None
    _free_B: int = 0
    _open: set[int] = field(default_factory=set)  # passages that are alive
    _late: list[int] = field(default_factory=list)  # threads whose passages died on another thread

    def obstacles(self, below_B: int) -> tuple[Obstacle, ...]:
        """What lies below an offset, by address: tensors that outlived the step that made them."""
        if not self.arena.in_use_below(below_B):
            return ()
        found: list[Obstacle] = []
        for block in self.arena.blocks():
            if block.offset_B >= below_B:
                break
            size_B = min(block.reserved_B, below_B - block.offset_B)
            if found and found[-1].offset_B + found[-1].size_B == block.offset_B:
                size_B += found[-1].size_B
                found[-1] = Obstacle(found[-1].offset_B, size_B)
            else:
                found.append(Obstacle(block.offset_B, size_B))
        return tuple(found)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A stretch of the caller's code, while no plan needs its places, that allocates inside the wall."""
        arena = self.arena
        arena.engage()
        try:
            arena.resting = True
            arena.set_phase(name)
            yield
        finally:
            arena.resting = False
            arena.set_phase(AFTER)
            arena.disengage()

    def keep_free(self, size_B: int) -> None:
        """Keeps bytes of the arena free for what lies outside it and counts.

        Raises:
            InfeasibleBudget: if tensors of earlier steps leave no such room.
        """
        if size_B == self._free_B:
            return
        self._free, self._free_B = None, 0
        if size_B:
            self.arena.plan_top_B = 0
            self._free = self.arena.set_aside(size_B)
            if self._free is None:
                raise InfeasibleBudget(
                    f"the inputs of this step take {format_B(size_B)} of the budget, and tensors of earlier steps "
                    "leave no room for them. Set outputs and gradients that are no longer needed to None, or raise "
                    "the budget.",
                    budget_B=self.budget_B,
                )
            self._free_B = size_B

    def passed(self, owner: int, number: int) -> None:
        """A passage died."""
        if number not in self._open:
            return  # abandoned before
        self._open.discard(number)
        if owner == threading.get_ident():
            self.arena.disengage()
        else:
            self._late.append(owner)

    def opened(self, number: int) -> None:
        """A passage was made."""
        self._open.add(number)
        self.arena.engage()

    def abandon(self) -> None:
        """Closes every window of this thread: a segment raised, and its traceback may keep passages alive for long."""
        while self._open:
            self._open.pop()
            self.arena.disengage()

    def catch_up(self) -> None:
        """Closes the windows of this thread whose passages died on other threads."""
        if not self._late:
            return
        mine = threading.get_ident()
        while mine in self._late:
            self._late.remove(mine)
            self.arena.disengage()


class Passage:
    """Keeps the window of the thread that made it open for as long as it lives."""

    def __init__(self, wall: Wall) -> None:
        self._wall, self._owner, self._number = wall, threading.get_ident(), next(_NUMBER)
        wall.opened(self._number)

    def __del__(self) -> None:
        self._wall.passed(self._owner, self._number)


@dataclass(frozen=True, eq=False)
class Walled:
    """How one plan's segments allocate.

    Arguments:
        wall: where.
        tables: per segment, which allocation goes where.
        height_B: of the layout: what the plan leaves alone begins here.
        beside_B: bytes of the step's inputs that lie outside the arena: as much of it stays empty.
    """

    wall: Wall
    tables: tuple[arenas.Table, ...]
    height_B: int
    beside_B: int = 0
    _enter: Callable[[arenas.Table], None] = field(default_factory=lambda: arenas.enter)
    _leave: Callable[[], int] = field(default_factory=lambda: arenas.leave)

    def run(self, segment: int, code: Callable[[list[Any]], Sequence[Any]], arguments: list[Any]) -> Sequence[Any]:
        """Runs a segment's code with its allocations served as planned."""
        arena = self.wall.arena
        self.wall.catch_up()
        if segment == 0:
            self.wall.keep_free(self.beside_B)
        arena.engage()
        try:
            arena.plan_top_B = self.height_B
            self._enter(self.tables[segment])
            try:
                return code(arguments)
            except BaseException:
                self.wall.abandon()
                raise
            finally:
                self._leave()
                arena.set_phase(BETWEEN)
        finally:
            arena.disengage()

    def part(self, segments: Iterable[int]) -> Walled:
        """The same for some of the segments: one graph of several."""
        return Walled(self.wall, tuple(self.tables[s] for s in segments), self.height_B, self.beside_B)

    def passage(self) -> Passage:
        """What a forward hands on to its backward."""
        return Passage(self.wall)


def make_tables(tables: Sequence[ReplayTable]) -> tuple[arenas.Table, ...]:
    """Hands the tables to the arena's own code."""
    return tuple(arenas.Table(t.sizes_B, t.offsets_B, t.first, t.names) for t in tables)
