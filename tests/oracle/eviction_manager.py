"""Manages evictions inside one budget: frees bytes, evicts, recomputes, releases. Torch-free.

Who runs operators asks it in this order: `enter(inputs)`; then the operator runs, and whoever serves its allocations
asks `make_free` where there is none; `record(...)`; `leave(inputs)`. An `Executor` carries out what it decides:
in a replay it only counts.

INVARIANT: what is allocated is what is resident, and what running operators have taken and not yet recorded.

Units: `_B` bytes, `_s` seconds, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from time import perf_counter
from typing import Protocol

from lowtide.eager_engine.replay import no_place
from tests.oracle.capacity import AbstractCapacity, Move
from tests.oracle.ledger import Call, Ledger, Value
from tests.oracle.policies.base import AbstractPolicy, Scene
from tests.oracle.recovery import bring
from tests.oracle.statistics import Statistics


class OutOfCapacity(Exception):
    """What runs leaves too few free bytes for a request, whatever is evicted.

    Arguments:
        need_B: what was asked for.
        capacity_B: all there is.
        in_use_B: what is taken and cannot be evicted.
        pinned_B: of these, what running operators use.
    """

    def __init__(self, need_B: int, capacity_B: int, in_use_B: int, pinned_B: int) -> None:
        super().__init__(no_place(need_B, capacity_B, in_use_B, pinned_B))
        self.need_B = need_B
        self.capacity_B = capacity_B
        self.in_use_B = in_use_B
        self.pinned_B = pinned_B


class Executor(Protocol):
    """Carries out what a manager decides."""

    def release(self, value: Value) -> None:
        """Frees the bytes of a root; `offset_B` still says where they are."""

    def recompute(self, call: Call, keep: Callable[[int], bool], over: Mapping[int, Value]) -> Sequence[int]:
        """Recomputes a call; its inputs are resident and pinned.

        Arguments:
            keep: says which outputs are kept, by index; the bytes of the others are freed before it returns. It is
                to be asked when the call has run: what is evicted for its sake is kept with it.
            over: outputs that are written over an input's bytes, by index. Where such an output is not kept, the
            manager
                frees the input's bytes.

        Returns: where each output lies; anything for views and for those that are not kept.
        """

    def movable(self, value: Value) -> bool:
        """Whether a resident root's bytes may be moved now."""

    def moved(self, moves: Sequence[Move]) -> None:
        """Moves bytes, in this order; the capacity has moved its blocks."""

    def send(self, value: Value) -> bool:
        """Copies a root's bytes to host memory and frees them.

        Returns: False where there was nothing to copy any more; then nothing was done.
        """

    def fetch(self, value: Value) -> int:
        """Takes bytes for a root that is in host memory, and copies it back; returns where it lies."""

    def discard(self, value: Value) -> None:
        """Frees a root's copy in host memory: nothing will ask for it."""


class EvictionManager:
    """See the module. One thread at a time.

    Arguments:
        forgets: values that nothing can need again leave the ledger. DTR's simulator remembers all of them.
    """

    def __init__(
        self,
        ledger: Ledger,
        capacity: AbstractCapacity,
        policy: AbstractPolicy,
        executor: Executor,
        *,
        forgets: bool = True,
    ) -> None:
        self.ledger = ledger
        self.capacity = capacity
        self.policy = policy
        self.executor = executor
        self.neighbourhood = policy.neighbourhood(ledger)
        self.scene = Scene(ledger, capacity, self.neighbourhood, movable=executor.movable)
        self.statistics = Statistics()
        self._forgets = forgets

    # Operators

    def enter(self, inputs: Sequence[Value], name: str = "", read: Sequence[Value] | None = None) -> None:
        """Makes an operator's inputs resident and pins them, each as often as it is named.

        Arguments:
            read: of them, what its recomputation would read; None: all.

        Raises:
            OutOfCapacity: if what is pinned leaves too few bytes; then nothing is pinned more than before.
        """
        self.policy.began(self.scene, name, inputs if read is None else read)
        bring(inputs, self)

    def record(
        self,
        name: str,
        inputs: Sequence[Value],
        sizes_B: Sequence[int],
        offsets_B: Sequence[int],
        cost_ns: int,
        *,
        views: Mapping[int, Value] | None = None,
        temps_B: Sequence[int] = (),
        consumes: Sequence[tuple[int, int]] = (),
        replay_record: object = None,
    ) -> Call:
        """Notes an operator that has run between `enter` and `leave`.

        Arguments:
            offsets_B: where its outputs lie; anything for views, and for outputs that consume an input.
            others: as in `Ledger.call`.
        """
        call = self.ledger.call(
            name, inputs, sizes_B, cost_ns, views=views, temps_B=temps_B, consumes=consumes, replay_record=replay_record
        )
        self.ledger.clock += cost_ns
        over = {output: call.inputs[source] for source, output in consumes}
        for value in (*call.outputs[1:], *call.outputs[:1]):  # in the order in which DTR's simulator files them
            if value.place in over:
                self._take_over(over[value.place].root, value)
            else:
                self.ledger.hold(value, offsets_B[value.place])
            self.ledger.touch(value)
        self.policy.ended(self.scene, call)
        return call

    def used(self, name: str, read: Sequence[Value], cost_ns: int = 0) -> None:
        """Instead of `record`: an operator that made nothing that can be recomputed, as one that writes to leaves."""
        self.ledger.clock += cost_ns
        if any(value.root.call is not None for value in read):
            self.policy.used(self.scene, name, read, cost_ns)

    def leave(self, inputs: Sequence[Value]) -> None:
        """Takes back the pins of `enter`."""
        for value in inputs:
            root = value.root
            self.ledger.unpin(root)
            if root.pins == 0 and not root.alive:
                self._release(root, self.policy.sheds)

    # Handles

    def died(self, root: Value) -> None:
        """The last handle of a root and of its views is gone: its bytes go at once, where they can be recomputed."""
        for value in (root, *root.views):
            value.alive = False
        self.policy.died(self.scene, root)
        if root.pins == 0:
            self._release(root, sheds=True)

    def commit(self, root: Value) -> None:
        """Makes a root resident and a leaf, so that it depends on nothing any more."""
        if root.call is None:
            return
        bring((root,), self)
        self.policy.settled(self.scene, root)
        self._gone(self.ledger.commit(root))
        self.leave((root,))

    def write(self, leaf: Value) -> None:
        """Prepares an operator that writes to a leaf: nothing alive needs its old content afterwards.

        Raises:
            OutOfCapacity: if what has to be kept instead does not fit.
        """
        for root in self.ledger.dependents(leaf):
            self.commit(root)

    def step_ended(self) -> None:
        """The program has begun to write to its parameters."""
        self.policy.step_ended(self.scene)

    # Capacity

    def take(self, size_B: int, owner: int, cost_ns: int) -> int:
        """Takes bytes, evicting for them where need be.

        Arguments:
            owner: id of the value that they are for; `NOBODY` where that may have other bytes still.
            cost_ns: of the call that asks.

        Raises:
            OutOfCapacity: if what is pinned leaves too few bytes.
        """
        if size_B == 0:
            return 0
        end = self.policy.end_for(cost_ns, size_B)
        offset_B = self.capacity.allocate(size_B, end, owner)
        if offset_B is None:
            self.make_free(size_B)
            offset_B = self.capacity.allocate(size_B, end, owner)
            assert offset_B is not None
        return offset_B

    def make_free(self, size_B: int) -> None:
        """Evicts, and slides where the policy says so, until a block of this size finds a place.

        Raises:
            OutOfCapacity: if no eviction helps any more.
        """
        began_s = perf_counter()
        before = self.statistics.evictions
        try:
            while not self.capacity.fits(size_B):
                if (
                    self.policy.slides
                    and self.capacity.free_B >= self.capacity.reserved_B(size_B)
                    and self.slide(size_B)
                ):
                    break
                victims = self.policy.choose(self.scene, size_B)
                if not victims:
                    if self.policy.slides_at_last and not self.scene.stuck:
                        if self.slide(size_B):
                            break
                        self.scene.stuck = True
                        continue
                    raise self.refusal(size_B)
                for value in victims:
                    self.evict(value)
        finally:
            self.scene.stuck = False
            self.statistics.searched(perf_counter() - began_s, self.scene.candidates)
            if self.statistics.evictions > before:
                self.statistics.sampled(self.capacity.free_B / self.capacity.capacity_B)

    def evict(self, value: Value) -> None:
        """Frees the bytes of an evictable root."""
        self.statistics.evicted(value, self.ledger.clock)
        if self.policy.sends(self.scene, value) and self.executor.send(value):
            value.on_host = True
            self.ledger.drop(value)
            self.statistics.sent_B += value.size_B
        else:
            self._free(value)
        self.policy.evicted(self.scene, value)

    # What recovery asks

    def pin(self, value: Value) -> None:
        self.ledger.pin(value)

    def touch(self, value: Value) -> None:
        self.ledger.touch(value)

    def fetch(self, root: Value) -> None:
        """Prefetches a root from host memory."""
        offset_B = self.executor.fetch(root)
        root.on_host = False
        self.ledger.hold(root, offset_B)
        self.statistics.fetches += 1
        self.statistics.fetched_B += root.size_B
        self.policy.restored(self.scene, root)

    def recompute(self, call: Call, wanted: Value, awaited: Set[int]) -> None:
        """Recomputes a call for the sake of one output; others that are gone come with it.

        Arguments:
            awaited: ids of values that calls further down the stack wait for.
        """

        def keep(place: int) -> bool:
            return self._keeps(call, call.outputs[place], wanted, awaited)

        over = {
            output: call.inputs[source].root for source, output in call.consumes if self._spare(call.inputs[source])
        }
        offsets_B = self.executor.recompute(call, keep, over)
        self.ledger.clock += call.cost_ns
        self.statistics.recomputed(call, self.ledger.clock)
        self.scene.recompute_ns += call.cost_ns
        kept = [output for output in call.outputs if output is not wanted and keep(output.place)]
        for place, source in over.items():
            if call.outputs[place] not in kept and call.outputs[place] is not wanted:
                self._free(source)
        for value in (*kept, wanted):
            if value.place in over:
                self._take_over(over[value.place], value)
            else:
                self.ledger.hold(value, offsets_B[value.place])
            if not value.is_view:
                self.neighbourhood.restored(value)
                self.policy.restored(self.scene, value)

    # The manager's own

    def _keeps(self, call: Call, output: Value, wanted: Value, awaited: Set[int]) -> bool:
        if not call.makes(output) or output.resident or output.root.on_host:
            return False
        return output is wanted or output.root.alive or not self.policy.sheds or output.id in awaited

    def _spare(self, value: Value) -> bool:
        """Whether a call that reads the value may write over it: nobody else waits for its content."""
        return value.root.pins == 1 and not value.root.alive and value.root.call is not None

    def _take_over(self, old: Value, new: Value) -> None:
        """What handles of the old content mean is the new one from now on."""
        for value in (old, *old.views):
            value.alive = False
        self.ledger.take_over(old, new)
        if new.size_B:
            assert new.offset_B is not None
            self.capacity.retag(new.offset_B, new.id)
        self.neighbourhood.evicted(old)

    def _free(self, root: Value) -> None:
        """A root's bytes go; it can be recomputed."""
        if root.size_B:
            self.executor.release(root)
        self.ledger.drop(root)
        self.neighbourhood.evicted(root)

    def _release(self, root: Value, sheds: bool) -> None:
        """An unpinned root without a handle: out of the ledger, or at least without bytes."""
        if self._forgets:
            for value in (*reversed(root.views), root):
                self._gone(self.ledger.forget(value))
        if sheds and root.resident and root.call is not None:
            self._free(root)

    def _gone(self, values: Sequence[Value]) -> None:
        for value in values:
            if value.is_view:
                self.neighbourhood.unlinked(value)
                continue
            self.neighbourhood.forgotten(value)
            if value.resident and value.size_B:
                self.executor.release(value)
            value.offset_B = None
            if value.on_host:
                self.executor.discard(value)
                value.on_host = False

    def slide(self, size_B: int) -> bool:
        """Slides blocks together; whether there is a place then."""
        values = self.ledger.values
        movable = {
            block.offset_B: values[block.tag]
            for block in self.capacity.blocks()
            if block.tag in values
            and values[block.tag].offset_B == block.offset_B
            and self.executor.movable(values[block.tag])
        }
        moves = self.capacity.slide_for(size_B, movable.keys())
        if moves:
            for from_B, to_B, moved_B in moves:
                movable[from_B].offset_B = to_B
                self.statistics.moved_B += moved_B
                self.scene.moved_B += moved_B
                self.statistics.moves += 1
            self.executor.moved(moves)
        return self.capacity.fits(size_B)

    def refusal(self, size_B: int) -> OutOfCapacity:
        """Why there is no place for so many bytes."""
        pinned_B = sum(v.size_B for v in self.ledger.values.values() if v.resident and v.pins)
        return refusal(size_B, self.capacity.capacity_B, self.capacity.in_use_B, pinned_B)


def refusal(need_B: int, capacity_B: int, in_use_B: int, pinned_B: int) -> OutOfCapacity:
    """Why a block finds no place though nothing more can be evicted."""
    return OutOfCapacity(need_B, capacity_B, in_use_B, pinned_B)
