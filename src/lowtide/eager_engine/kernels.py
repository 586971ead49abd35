"""Running kernels in a room that may be full: what makes room before and inside them, and what if there is none.

Once the arena has been full, room is made for a kernel before it runs, for what like ones asked for (`forecasts.py`):
everything may still move then. Where it asks torch's allocator for more, and the arena has no place, the allocator asks
`relieve`, which evicts, inside the kernel. What the kernel was given can neither go nor move meanwhile. Where that
fences the arena, the kernel fails with torch's own out-of-memory error; if it has written to none of its arguments, or
if these can be made again, everything is slid together, its arguments too, the generator is put back, and it runs once
more.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lowtide.device.arena import Arena
from lowtide.eager_engine.bodies import Bodies
from lowtide.eager_engine.copies import Copies
from lowtide.eager_engine.forecasts import Forecast, Forecasts, Likeness, likeness
from lowtide.eager_engine.keeper import Keeper
from lowtide.eager_engine.ledger import Value
from lowtide.eager_engine.performer import StoragePerformer, Vanished
from lowtide.eager_engine.randomness import Draw
from lowtide.eager_engine.recorder import Recorder
from lowtide.eager_engine.room import End
from lowtide.eager_engine.shortage import Shortage, shortage
from lowtide.eager_engine.slab_room import SlabRoom
from lowtide.errors import OutOfRoom

_LARGER = 4  # by this part of it a hole grows that did not do


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
        self._failure: BaseException | None = None
        self._waits = ""  # the operator for which others are run again
        self._shortage: Shortage | None = None  # of the kernel that runs
        self._forecasts = Forecasts()
        self._asked_B = 0  # by the kernel that ran last: results and workspaces, together at most; 0: not known
        self.retries = 0
        self.stepped: set[int] = set()  # ids of what an optimizer's step has made

    def catch_up(self) -> None:
        """Learns which storages the program has let go of."""
        for number in self._arena.take_deaths():
            value = self.keeper.ledger.values.get(abs(number))
            if value is not None:
                self._lose(value, kept=number < 0)

    def sweep(self) -> None:
        """Learns it of what lies beside the arena, too."""
        for value in self._bodies.expired():
            self._lose(value, kept=False)
        self.catch_up()

    def _lose(self, value: Value, *, kept: bool) -> None:
        self.stepped.discard(value.id)
        self._bodies.died(value, kept=kept)
        self._recorder.died(value.id)
        self.keeper.died(value)
        if value.resident and self._bodies.get(value) is None:  # pinned, and its bytes went all the same
            self.keeper.ledger.drop(value)
            self.keeper.kinship.evicted(value)

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
    def entered(self, inputs: Sequence[Value], name: str, read: Sequence[Value] | None = None) -> Iterator[None]:
        """Inside, these values are resident, and the kernel that runs is given them.

        Raises:
            torch.OutOfMemoryError: if they do not fit beside what cannot be evicted.
        """
        self._waits = name
        try:
            self._recover(lambda: self.keeper.enter(inputs, name, read))
        finally:
            self._waits = ""
        before = self.performer.running(inputs)
        try:
            yield
        finally:
            self.performer.resume(before)
            self.keeper.leave(inputs)

    def likeness(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Likeness | None:
        """See `forecasts.likeness`; None where nothing is made of it."""
        return likeness(name, args, kwargs) if self.keeper.policy.partitions or self._was_full else None

    @property
    def _was_full(self) -> bool:
        return self.keeper.statistics.searches > 0

    def learn(self, like: Likeness | None, cost_ns: int, sizes_B: Sequence[int]) -> None:
        """A call has run.

        Arguments:
            sizes_B: of its new results.
        """
        if like is not None:
            self._forecasts.learn(like, Forecast(cost_ns, max(sizes_B, default=0)))

    def workspaces_B(self, results_B: int) -> tuple[int, ...]:
        """What the kernel that ran last had beyond its new results at most, if anything and if that is known."""
        return (self._asked_B - results_B,) if self._asked_B > results_B else ()

    def attempt(
        self,
        name: str,
        kernel: Callable[[], Any],
        drawn: Draw | None,
        is_clean: bool,
        like: Likeness | None,
        copies: Copies | None = None,
        over: Sequence[Value] = (),
    ) -> Any:
        """Runs a kernel; again, with one hole for all that it is known to ask for, where that may help.

        Arguments:
            name: of the operator, for messages.
            drawn: where the generator stood, if it draws.
            is_clean: it writes to none of its arguments, or to copies of them.
            like: what it is like.
            copies: that it writes to; they are made anew whenever it runs.
            over: what it writes over, if all of it can be made again; that is done before another try.

        Raises:
            torch.OutOfMemoryError: with what lies in the arena and what to do.
        """
        self._choose_side(like)
        if like is not None:
            self._admit((*(copies.sizes_B if copies is not None else ()), *self._forecasts.blocks_B(like)))
        self._asked_B = 0
        if like is not None and self._was_full:
            kernel = self._metered(kernel, like)
        hole_B = 0
        while True:
            try:
                if copies is not None:
                    copies.make()
                return kernel()
            except torch.OutOfMemoryError as error:
                self._pass_on(error)
                found = self._shortage or self._short_of(0)
            if copies is not None:
                copies.undo()
            # What it gives back before it ends may cut the hole: then a larger one.
            wanted_B = max(found.own_B + self._room.reserved_B(found.need_B), hole_B + hole_B // _LARGER)
            if not is_clean and not self._made_again(over, name):
                raise self.out_of_memory(found.need_B, name)
            if not self._make_hole(wanted_B):
                wanted_B = self._room.largest_hole_B
                if wanted_B <= hole_B:
                    raise self.out_of_memory(found.need_B, name)
            hole_B = wanted_B
            self._shortage = None
            self.retries += 1
            if drawn is not None:
                drawn.rewind()

    def _made_again(self, values: Sequence[Value], name: str) -> bool:
        """Gives up values that a kernel may have begun to write over, and brings them back; False where that fails."""
        before = self.performer.running(())
        try:
            if not values or not all(map(self.performer.movable, values)):
                return False
            self._waits = name
            self.keeper.spoiled(values)
            self._recover(lambda: self.keeper.bring_back(values))
            return True
        finally:
            self._waits = ""
            self.performer.resume(before)

    def _metered(self, kernel: Callable[[], Any], like: Likeness) -> Callable[[], Any]:
        """The kernel, and a note of what it asks for."""

        def metered() -> Any:
            self._arena.meter()
            try:
                results = kernel()
            except BaseException:
                self._arena.metered()
                raise
            blocks_B = self._arena.metered()
            self._forecasts.asked(like, blocks_B)
            self._asked_B = sum(blocks_B)
            return results

        return metered

    def _admit(self, blocks_B: Sequence[int]) -> None:
        """Makes room for blocks that a kernel is going to ask for: none runs, so that everything may move."""
        sum_B = sum(map(self._room.reserved_B, blocks_B))
        if not sum_B or self._room.fits(sum_B):
            return
        before = self.performer.running(())
        try:
            self.sweep()
            if not self._would_fit(blocks_B):
                self._make_hole(sum_B)
        finally:
            self.performer.resume(before)

    def _would_fit(self, blocks_B: Sequence[int]) -> bool:
        """Makes room for these blocks one after the other; whether they find places beside each other."""
        held = []  # bytes that nobody uses meanwhile
        for size_B in blocks_B:
            block = self._arena.set_aside(size_B)
            if block is None and self._has_room(size_B):
                block = self._arena.set_aside(size_B)
            if block is None:
                return False
            held.append(block)
        return True

    def _has_room(self, size_B: int) -> bool:
        """Makes room for a block; False where there is none."""
        try:
            self.keeper.make_room(size_B)
        except OutOfRoom:
            return False
        return True

    def _choose_side(self, like: Likeness | None) -> None:
        """Says from which end of the arena the kernel that comes is served."""
        forecast = None if like is None else self._forecasts.of(like)
        is_high = (
            forecast is not None
            and forecast.size_B > 0
            and self.keeper.policy.end_for(forecast.cost_ns, forecast.size_B) is End.HIGH
        )
        self._arena.set_side(is_high)

    def make_room(self, size_B: int) -> None:
        """Makes room for a block outside any kernel.

        Raises:
            torch.OutOfMemoryError: if nothing more can be evicted.
        """
        self.sweep()
        try:
            self.keeper.make_room(size_B)
        except OutOfRoom as refusal:
            if not self._make_hole(size_B):
                raise self.out_of_memory(size_B) from refusal

    def commit(self, value: Value) -> None:
        """Makes a value resident and a leaf.

        Raises:
            torch.OutOfMemoryError: if it does not fit beside what cannot be evicted.
        """
        if value.call is not None:
            self._recover(lambda: self.keeper.commit(value))
            self._bodies.settled(value)

    def settle_dependents(self, leaf: Value) -> None:
        """Commits what is alive and would be made again from this leaf, which is about to change."""
        for root in self.keeper.ledger.dependents(leaf):
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

    def out_of_memory(self, need_B: int, name: str = "") -> torch.OutOfMemoryError:
        """What to say where there is no room.

        Arguments:
            name: of the operator that asked; empty: code between operators.
        """
        found = self._shortage
        if found is None or found.need_B != need_B:
            found = self._short_of(need_B)
        self._shortage = None
        who = f"{name}', run again for '{self._waits}" if name and self._waits else name or self._waits
        return torch.OutOfMemoryError(found.text(self._budget_B, who))

    def _short_of(self, need_B: int) -> Shortage:
        hole_B, shared_B = self._room.largest_hole_B, self._bodies.shared_B
        return shortage(self.keeper.ledger, self._room, need_B, hole_B, self.stepped, shared_B)

    def _make_hole(self, size_B: int) -> bool:
        """Makes one hole while no kernel runs: everything may move, so any eviction helps. False: all is not enough."""
        before = self.performer.running(())
        keeper = self.keeper
        try:
            self.sweep()
            if not self._room.fits(size_B) and keeper.policy.slides_at_last and self._has_room(size_B):
                return True  # what moves cost is weighed
            while not self._room.fits(size_B):
                if self._room.free_B >= self._room.reserved_B(size_B) and keeper.slide(size_B):
                    continue
                evictable = keeper.ledger.evictable
                victims = keeper.policy.choose(keeper.scene, size_B) or tuple(itertools.islice(evictable.values(), 1))
                if not victims:
                    keeper.slide(self._room.free_B)
                    return False
                for value in victims:
                    keeper.evict(value)
            return True
        finally:
            self.performer.resume(before)

    def _pass_on(self, error: BaseException) -> None:
        """Raises what was raised inside the allocator, if anything was."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure from error
