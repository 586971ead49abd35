"""Replays a recorded step in Python under a policy of the oracle. Torch-free.

Units: `_B` bytes, `_s` seconds, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from lowtide._core import Arena
from lowtide.eager_engine.replay import ReplayResult, Rules
from lowtide.ir.tape import Died, Leaf, Ran, Tape
from lowtide.units import format_percent
from tests.oracle.capacity import NOBODY, AbstractCapacity, Addresses, End, Move, Tank
from tests.oracle.eviction_manager import EvictionManager, OutOfCapacity
from tests.oracle.ledger import Call, Ledger, Value
from tests.oracle.policies.base import AbstractPolicy
from tests.oracle.statistics import Statistics


def capacity_of(rules: Rules, capacity_B: int) -> AbstractCapacity:
    """An empty capacity, as the rules of a replay say."""
    if rules.accounting == "bytes":
        return Tank(capacity_B)
    return Addresses(Arena(capacity_B, rules.alignment_B), rules.small_B)


def replay(tape: Tape, policy: AbstractPolicy, budget_B: int, rules: Rules | None = None) -> ReplayResult:
    """Runs a tape inside a budget; contents that are named at its end are resident and pinned then.

    Arguments:
        tape: read as `rules.in_place` says.
        policy: a fresh one. One that learns from the step before gets the tape several times; the last one counts.

    O(calls x what the policy looks at).
    """
    rules = rules or Rules()
    player = _Player(tape, policy, budget_B, rules)
    refused = player.play()
    manager = player.manager
    done = manager.statistics
    return ReplayResult(
        policy=policy.name,
        budget_B=budget_B,
        peak_B=manager.capacity.peak_B,
        overhead=1 + done.recompute_ns / max(1, tape.time_ns),
        refused=refused,
        evictions=done.evictions,
        evicted_B=done.evicted_B,
        recomputations=done.recomputations,
        recompute_ns=done.recompute_ns,
        searches=done.searches,
        candidates=manager.scene.candidates,
        search_s=done.search_s,
        fragmentation=done.fragmentation,
        moved_B=done.moved_B,
        sent_B=done.sent_B,
        fetched_B=done.fetched_B,
        digest=f"{done.digest:016x}",
    )


class _TooSlow(Exception):
    """Recomputations cost more than the limit."""


@final
@dataclass(eq=False)
class _Player:
    """An executor that counts, and the program that it executes."""

    tape: Tape
    policy: AbstractPolicy
    budget_B: int
    rules: Rules
    manager: EvictionManager = field(init=False)
    values: list[Value] = field(init=False, default_factory=list)  # by number - 1
    most_ns: float = field(init=False)  # of recomputations in this pass
    limit_ns: float = field(init=False)

    def __post_init__(self) -> None:
        capacity = capacity_of(self.rules, self.budget_B)
        self.manager = EvictionManager(Ledger(), capacity, self.policy, self, forgets=self.rules.forgets)
        limit = self.rules.limit
        self.most_ns = float("inf")
        self.limit_ns = float("inf") if limit is None else (limit - 1) * self.tape.time_ns

    def play(self) -> str | None:
        """Runs the tape to its end, as often as the policy wants; or says why not. Only the last time counts."""
        for _ in range(self.policy.passes - 1):
            refused = self._pass()
            if refused is not None:
                return refused
            self._leave()
        self.most_ns = self.limit_ns
        return self._pass()

    def _leave(self) -> None:
        """A step is over: no name means anything any more, and nothing was counted."""
        manager = self.manager
        for number in self.tape.kept:
            manager.leave((self.values[number - 1],))
        manager.step_ended()
        for value in self.values:
            if value.root.alive and not value.is_view:
                manager.died(value)
        self.values.clear()
        manager.statistics = Statistics()
        manager.scene.candidates = 0

    def _pass(self) -> str | None:
        where = "at the start"
        try:
            for at, event in enumerate(self.tape.events):
                where = f"at event {at + 1} of {len(self.tape.events)}"
                match event:
                    case Leaf(size_B):
                        self._leaf(size_B)
                    case Ran():
                        self._run(event)
                    case Died(number):
                        self.manager.died(self.values[number - 1].root)
            where = "when the results were asked for"
            for number in self.tape.kept:
                self.manager.enter((self.values[number - 1],))
        except OutOfCapacity as error:
            return f"out of memory {where}: {error}"
        except _TooSlow:
            limit = format_percent(self.rules.limit or 0.0)
            return f"slower than {limit} of the plain time {where}"
        return None

    def _leaf(self, size_B: int) -> None:
        ledger = self.manager.ledger
        self.values.append(ledger.leaf(size_B, self.manager.take(size_B, ledger.next_id, 0)))

    def _run(self, ran: Ran) -> None:
        """One call; what it writes over that nothing recomputes remains the same value, with other bytes."""
        manager = self.manager
        if not ran.sizes_B:  # aliases alone
            manager.ledger.clock += ran.cost_ns
            return
        inputs = tuple(self.values[number - 1] for number in ran.inputs)
        written = {output: inputs[source] for source, output in ran.consumes if inputs[source].call is None}
        for leaf in written.values():
            manager.write(leaf)
        manager.enter(inputs, ran.name)
        if len(written) == len(ran.sizes_B):  # nothing new
            manager.used(ran.name, inputs, ran.cost_ns)
            self.values.extend(written.values())
        else:
            self._record(ran, inputs, written)
        manager.leave(inputs)

    def _record(self, ran: Ran, inputs: Sequence[Value], written: Mapping[int, Value]) -> None:
        manager = self.manager
        fresh = [output for output in range(len(ran.sizes_B)) if output not in written]
        consumes = {fresh.index(output): source for source, output in ran.consumes if output not in written}
        views = {fresh.index(output): self.values[number - 1] for output, number in ran.views}
        sizes_B = [ran.sizes_B[output] for output in fresh]
        next_id = manager.ledger.next_id
        wanted = {i: (size_B, next_id + i) for i, size_B in enumerate(sizes_B) if i not in consumes and i not in views}
        taken_B = dict(zip(wanted, self._run_kernel(list(wanted.values()), ran.temps_B, ran.cost_ns), strict=True))
        offsets_B = [taken_B.get(i, 0) for i in range(len(sizes_B))]
        call = manager.record(
            ran.name,
            inputs,
            sizes_B,
            offsets_B,
            ran.cost_ns,
            views=views,
            temps_B=ran.temps_B,
            consumes=[(source, output) for output, source in consumes.items()],
        )
        made = iter(call.outputs)
        for output in range(len(ran.sizes_B)):
            self.values.append(written[output] if output in written else next(made))
        if written:  # recomputed, it would read what it wrote
            for value in call.outputs:
                manager.commit(value)

    def _run_kernel(self, wanted: Sequence[tuple[int, int]], temps_B: Sequence[int], cost_ns: int) -> list[int]:
        """Bytes for what a call makes, as in `_take`, and for its workspaces, which it gives back."""
        taken = self._take([*wanted, *((size_B, NOBODY) for size_B in temps_B)], cost_ns)
        for offset_B, size_B in zip(taken[len(wanted) :], temps_B, strict=True):
            if size_B:
                self.manager.capacity.free(offset_B)
        return taken[: len(wanted)]

    def _take(self, wanted: Sequence[tuple[int, int]], cost_ns: int) -> list[int]:
        """Bytes for a call: (size, owner). Where its own blocks fence those that it still wants, though the free bytes
        suffice or nothing else can go, once more from the start, in one hole for all of them: as the runtime admits an
        operator."""
        manager, capacity = self.manager, self.manager.capacity
        slides = self.policy.slides or self.policy.slides_at_last
        rest_B = all_B = sum(capacity.reserved_B(size_B) for size_B, _ in wanted if size_B)
        taken: list[int] = []
        try:
            for size_B, owner in wanted:
                if taken and size_B and slides and capacity.free_B >= rest_B and not capacity.fits(size_B):
                    raise manager.refusal(size_B)
                taken.append(manager.take(size_B, owner, cost_ns))
                rest_B -= capacity.reserved_B(size_B) if size_B else 0
        except OutOfCapacity:
            for offset_B, (size_B, _) in zip(taken, wanted, strict=False):
                if size_B:
                    capacity.free(offset_B)
            if not taken or not slides:
                raise
            manager.make_free(all_B)
            taken = [(capacity.allocate(size_B, End.LOW, owner) or 0) if size_B else 0 for size_B, owner in wanted]
        return taken

    # As an executor

    def release(self, value: Value) -> None:
        assert value.offset_B is not None
        self.manager.capacity.free(value.offset_B)

    def recompute(self, call: Call, keep: Callable[[int], bool], over: Mapping[int, Value]) -> Sequence[int]:
        fresh = [output for output in call.outputs if not output.is_view and output.place not in over]
        offsets_B = [0] * len(call.outputs)
        taken_B = self._run_kernel([(output.size_B, NOBODY) for output in fresh], call.temps_B, call.cost_ns)
        for output, offset_B in zip(fresh, taken_B, strict=True):
            offsets_B[output.place] = offset_B
        for output in fresh:
            if output.size_B and keep(output.place):
                self.manager.capacity.retag(offsets_B[output.place], output.id)
            elif output.size_B:
                self.manager.capacity.free(offsets_B[output.place])
        if self.manager.statistics.recompute_ns + call.cost_ns > self.most_ns:
            raise _TooSlow
        return offsets_B

    def movable(self, value: Value) -> bool:  # noqa: ARG002
        """Everything: no kernel is running on the bytes."""
        return True

    def moved(self, moves: Sequence[Move]) -> None:
        """There are no bytes."""

    def send(self, value: Value) -> bool:
        self.release(value)
        return True

    def fetch(self, value: Value) -> int:
        return self.manager.take(value.size_B, value.id, 0)

    def discard(self, value: Value) -> None:
        """There is no copy."""
