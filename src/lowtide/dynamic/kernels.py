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
from lowtide.dynamic.performer import StoragePerformer
from lowtide.dynamic.randomness import Draw
from lowtide.dynamic.recorder import Recorder
from lowtide.dynamic.slab_room import SlabRoom
from lowtide.errors import OutOfRoom
from lowtide.units import format_B


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
        self._refused_B = 0
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
            self._refused_B = size_B
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
        try:
            self.keeper.enter(inputs, name)
        except OutOfRoom as refusal:
            raise self.out_of_memory(refusal.need_B) from refusal
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
            try:
                self.keeper.commit(value)
            except OutOfRoom as refusal:
                raise self.out_of_memory(refusal.need_B) from refusal

    def settle_dependents(self, leaf: Value) -> None:
        """Commits what is alive and would be made again from this leaf, which is about to change."""
        for root in sorted(self.keeper.ledger.descendants(leaf), key=lambda value: value.id):
            if root.alive:
                self.commit(root)

    def out_of_memory(self, need_B: int) -> torch.OutOfMemoryError:
        """What to say where there is no room."""
        values = [v for v in self.keeper.ledger.values.values() if v.resident]
        homes_B = sum(v.size_B for v in values if v.home)
        leaves_B = sum(v.size_B for v in values if v.call is None and not v.home)
        pinned_B = sum(v.size_B for v in values if v.pins and v.call is not None)
        others_B = max(0, self._room.in_use_B - homes_B - leaves_B - sum(v.size_B for v in values if v.call))
        who = f"'{self._name}'" if self._name else "code between operators"
        return torch.OutOfMemoryError(
            f"lowtide: the budget of {format_B(self._budget_B)} is too small here: {who} asked for {format_B(need_B)} "
            f"({need_B} B), and nothing more can be evicted. Held: {format_B(homes_B)} of parameters, gradients and "
            f"optimizer state; {format_B(leaves_B)} of inputs and of what was kept because a parameter was written; "
            f"{format_B(pinned_B)} that the operator reads; {format_B(others_B)} of its own results and workspaces. "
            f"The largest hole is {format_B(self._room.largest_hole_B)} of {format_B(self._room.free_B)} free. Raise the "
            "budget, make the batch smaller, or let go of tensors of earlier steps."
        )

    def _slide_all(self) -> bool:
        """Slides everything that may move together; whether anything moved, or nothing has to."""
        before = self.performer.running(())
        try:
            for size_B in (self._room.free_B, self._refused_B):
                if size_B and self.keeper.slide(size_B):
                    return True
            return False
        finally:
            self.performer.resume(before)

    def _pass_on(self, error: BaseException) -> None:
        """Raises what was raised inside the allocator, if anything was."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure from error
