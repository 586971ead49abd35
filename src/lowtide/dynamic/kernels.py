"""Running kernels in a room that may be full: what makes room before and inside them, and what happens where there is none.

A kernel asks torch's allocator for its results and workspaces; where the arena has no place, the allocator asks
`relieve`, which evicts, inside the kernel. What the kernel was given can neither go nor move meanwhile. Where that
fences the arena, the kernel fails with torch's own out-of-memory error; if it has written to none of its arguments,
everything is slid together, its arguments too, the generator is put back, and it runs once more.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lowtide.device.arena import Arena
from lowtide.dynamic.bodies import Bodies
from lowtide.dynamic.keeper import Keeper
from lowtide.dynamic.ledger import Value
from lowtide.dynamic.performer import StoragePerformer, Vanished
from lowtide.dynamic.randomness import Draw
from lowtide.dynamic.recorder import Recorder
from lowtide.dynamic.shortage import Shortage, shortage
from lowtide.dynamic.slab_room import SlabRoom
from lowtide.errors import OutOfRoom


class Kernels:
    """See the module. `keeper` and `performer` are set once they exist: they know each other.

    Arguments:
        budget_B: for messages.
    """

    keeper: Keeper
    performer: StoragePerformer

    def __init__(self, arena: Arena, bodies: Bodies, room: SlabRoom, recorder: Recorder, budget_B: int) -> None:
        self._arena = arena
        self._bodies = bodies
        self._room = room
        self._recorder = recorder
        self._budget_B = budget_B
        self._name = ""
        self._failure: BaseException | None = None
        self._shortage: Shortage | None = None  # of the kernel that runs
        self.retries = 0

    def catch_up(self) -> None:
        """Learns which storages the program has let go of."""
        for number in self._arena.take_deaths():
            value = self.keeper.ledger.values.get(number)
            if value is not None:
                self._lose(value)

    def sweep(self) -> None:
        """Learns it of leaves that calls hold, and of what lies beside the arena, too."""
        for value in (*self._bodies.abandoned(), *self._bodies.expired()):
            self._lose(value)
        self.catch_up()

    def _lose(self, value: Value) -> None:
        self._bodies.died(value)
        self._recorder.died(value)
        self.keeper.died(value)

    def relieve(self, size_B: int) -> bool:
        """Makes room inside a kernel, for the allocator; False where there is none."""
        try:
            self.sweep()
            self.keeper.make_room(size_B)
        except OutOfRoom:
            self._shortage = self._short_of(size_B)
            return False
        except BaseException as error:  # reaches the caller of the kernel, past torch's own frames
            self._failure = error
            return False
        return True

    @contextlib.contextmanager
    def entered(self, inputs: Sequence[Value], name: str) -> Iterator[None]:
        """Inside, these values are resident, and the kernel that runs is given them.

        Raises:
            torch.OutOfMemoryError: if they do not fit beside what cannot be evicted.
        """
        self._name = name
        self._recover(lambda: self.keeper.enter(inputs, name))
        before = self.performer.running(inputs)
        try:
            yield
        finally:
            self.performer.resume(before)
            self.keeper.leave(inputs)

    def attempt(self, kernel: Callable[[], Any], drawn: Draw | None, is_clean: bool) -> Any:
        """Runs a kernel; a second time, with everything slid together, where that may help.

        Arguments:
            drawn: where the generator stood, if it draws.
            is_clean: it writes to none of its arguments.

        Raises:
            torch.OutOfMemoryError: with what lies in the arena and what to do.
        """
        try:
            return kernel()
        except torch.OutOfMemoryError as error:
            self._pass_on(error)
            if not is_clean or not self._slide_all():
                raise self.out_of_memory(self._refused_B) from None
        if drawn is not None:
            drawn.rewind()
        self.retries += 1
        try:
            return kernel()
        except torch.OutOfMemoryError as error:
            self._pass_on(error)
            raise self.out_of_memory(self._refused_B) from None

    def make_room(self, size_B: int) -> None:
        """Makes room for a block outside any kernel.

        Raises:
            torch.OutOfMemoryError: if nothing more can be evicted.
        """
        self.sweep()
        try:
            self.keeper.make_room(size_B)
        except OutOfRoom as refusal:
            if not (self._slide_all() and self._room.fits(size_B)):
                raise self.out_of_memory(size_B) from refusal

    def commit(self, value: Value) -> None:
        """Makes a value resident and a leaf.

        Raises:
            torch.OutOfMemoryError: if it does not fit beside what cannot be evicted.
        """
        if value.call is not None:
            self._recover(lambda: self.keeper.commit(value))
            if value.readers:
                self._bodies.hold(value)

    def settle_dependents(self, leaf: Value) -> None:
        """Commits what is alive and would be made again from this leaf, which is about to change."""
        for root in sorted(self.keeper.ledger.descendants(leaf), key=lambda value: value.id):
            if root.alive:
                self.commit(root)

    def _recover(self, recovery: Callable[[], None]) -> None:
        while True:
            try:
                return recovery()
            except Vanished:
                self.catch_up()
            except OutOfRoom as refusal:
                raise self.out_of_memory(refusal.need_B) from refusal

    def out_of_memory(self, need_B: int) -> torch.OutOfMemoryError:
        """What to say where there is no room."""
        found = self._shortage
        if found is None or found.need_B != need_B:
            found = self._short_of(need_B)
        self._shortage = None
        return torch.OutOfMemoryError(found.text(self._budget_B, self._name))

    def _short_of(self, need_B: int) -> Shortage:
        return shortage(self.keeper.ledger, self._room, need_B, self._room.largest_hole_B)

    def _slide_all(self) -> bool:
        """Slides everything that may move together; whether anything moved, or nothing has to."""
        before = self.performer.running(())
        try:
            size_B = self._room.free_B  # what cannot move may leave no such hole: then the next smaller one
            while size_B > self._refused_B:
                if self.keeper.slide(size_B):
                    return True
                size_B = size_B * 7 // 8
            return self._refused_B > 0 and self.keeper.slide(self._refused_B)
        finally:
            self.performer.resume(before)

    @property
    def _refused_B(self) -> int:
        return 0 if self._shortage is None else self._shortage.need_B

    def _pass_on(self, error: BaseException) -> None:
        """Raises what was raised inside the allocator, if anything was."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure from error
