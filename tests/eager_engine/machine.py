"""A runtime with contents instead of tensors: what is rematerialised has to be what it was. Units: `_B` bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tests.oracle.capacity import NOBODY, AbstractCapacity, Move
from tests.oracle.eviction_manager import EvictionManager, OutOfCapacity
from tests.oracle.ledger import Call, Ledger, Value
from tests.oracle.policies.base import AbstractPolicy

ALIGNMENT_B = 64


class Machine:
    """Runs operators whose results are hashes of what they read; bytes that are gone cannot be read.

    Invariant: `contents` has exactly the resident values that have bytes, and some that have none; `handles` the values
    that the program can name.
    """

    def __init__(self, capacity: AbstractCapacity, policy: AbstractPolicy) -> None:
        self.capacity = capacity
        self.manager = EvictionManager(Ledger(), capacity, policy, self)
        self.contents: dict[Value, int] = {}
        self.truth: dict[Value, int] = {}
        self.handles: list[Value] = []
        self.sent: dict[Value, int] = {}

    # What a program does

    def leaf(self, size_B: int, content: int) -> Value:
        ledger = self.manager.ledger
        value = ledger.leaf(size_B, self.manager.take(size_B, ledger.next_id, 0))
        self.contents[value] = self.truth[value] = content
        self.handles.append(value)
        return value

    def call(self, name: str, inputs: Sequence[Value], sizes_B: Sequence[int], cost_ns: int = 5) -> tuple[Value, ...]:
        manager = self.manager
        manager.enter(inputs, name)
        try:
            results = [hash((name, place, *self._read(inputs))) for place in range(len(sizes_B))]
            offsets_B = self._taken(sizes_B, range(manager.ledger.next_id, manager.ledger.next_id + len(sizes_B)))
            call = manager.record(name, inputs, sizes_B, offsets_B, cost_ns)
            for value, content in zip(call.outputs, results, strict=True):
                self.contents[value] = self.truth[value] = content
        finally:
            manager.leave(inputs)
        self.handles += call.outputs
        return call.outputs

    def write(self, name: str, inputs: Sequence[Value], cost_ns: int = 5) -> None:
        """An operator that writes over its first input."""
        manager, old = self.manager, inputs[0]
        if old.call is None:
            manager.write(old)
        manager.enter(inputs, name)
        try:
            content = hash((name, 0, *self._read(inputs)))
            if old.call is None:
                self.contents[old] = self.truth[old] = content
                manager.ledger.clock += cost_ns
                return
            call = manager.record(name, inputs, [old.size_B], [0], cost_ns, consumes=[(0, 0)])
            (new,) = call.outputs
            del self.contents[old]
            self.contents[new] = self.truth[new] = content
            self.handles[self.handles.index(old)] = new
        finally:
            manager.leave(inputs)

    def forget(self, value: Value) -> None:
        """The program releases a name."""
        self.handles.remove(value)
        self.manager.died(value)

    def check(self) -> None:
        """The invariants, and that everything resident is what it was."""
        ledger = self.manager.ledger
        held = {value for value in ledger.values.values() if value.resident and value.size_B}
        assert {value for value in ledger.values.values() if value.on_host} == set(self.sent)
        assert held == {value for value in self.contents if value.size_B}
        assert all(content == self.truth[value] for value, content in self.contents.items())
        assert sum(self.capacity.reserved_B(value.size_B) for value in held) == self.capacity.in_use_B
        assert not any(value.pins for value in ledger.values.values())
        assert all(value.alive and value.id in ledger.values for value in self.handles)
        readers = {(call.id, value) for value in ledger.values.values() for call in value.readers.values()}
        assert readers == {
            (made.call.id, value) for made in ledger.values.values() if made.call for value in made.call.inputs
        }

    def _read(self, inputs: Sequence[Value]) -> list[int]:
        return [self.contents[value] for value in inputs]

    def _taken(self, sizes_B: Sequence[int], owners: Sequence[int]) -> list[int]:
        taken: list[int] = []
        try:
            for size_B, owner in zip(sizes_B, owners, strict=True):
                taken.append(self.manager.take(size_B, owner, 1))
        except OutOfCapacity:
            for offset_B, size_B in zip(taken, sizes_B, strict=False):
                if size_B:
                    self.capacity.free(offset_B)
            raise
        return taken

    # As an executor

    def release(self, value: Value) -> None:
        self.forgotten(value)
        assert value.offset_B is not None
        self.capacity.free(value.offset_B)

    def forgotten(self, value: Value) -> None:
        del self.contents[value]

    def recompute(self, call: Call, keep: Callable[[int], bool], over: Mapping[int, Value]) -> Sequence[int]:
        results = [hash((call.name, place, *self._read(call.inputs))) for place in range(len(call.outputs))]
        fresh = [output for output in call.outputs if output.place not in over]
        taken = self._taken([output.size_B for output in fresh], [NOBODY] * len(fresh))
        offsets_B = [0] * len(call.outputs)
        for output, offset_B in zip(fresh, taken, strict=True):
            offsets_B[output.place] = offset_B
            if output.size_B and keep(output.place):
                self.capacity.retag(offset_B, output.id)
            elif output.size_B:
                self.capacity.free(offset_B)
        for place, source in over.items():
            if keep(place):
                del self.contents[source]
        for output in call.outputs:
            if keep(output.place):
                self.contents[output] = results[output.place]
        return offsets_B

    def movable(self, value: Value) -> bool:
        return not value.pins

    def moved(self, moves: Sequence[Move]) -> None:
        pass

    def send(self, value: Value) -> bool:
        self.sent[value] = self.contents[value]
        self.release(value)
        return True

    def fetch(self, value: Value) -> int:
        offset_B = self.manager.take(value.size_B, value.id, 0)
        self.contents[value] = self.sent.pop(value)
        return offset_B

    def discard(self, value: Value) -> None:
        del self.sent[value]


def program(machine: Machine, seed: int, steps: int = 60, watch: Callable[[], None] = lambda: None) -> None:
    """Does anything that is possible, and looks at what came of it after each step."""
    random = Random(seed)
    for k in range(3):
        machine.leaf(random.choice([64, 640]), k)
    for k in range(steps):
        inputs = [random.choice(machine.handles) for _ in range(random.randint(1, 3))]
        try:
            match random.randrange(9):
                case 0 | 1 | 2 | 3:
                    sizes_B = [random.choice([0, 64, 320, 1280]) for _ in range(random.randint(1, 3))]
                    machine.call(f"call{k % 5}", inputs, sizes_B, random.randint(0, 9))
                case 4 | 5:
                    machine.write("write_", inputs, random.randint(1, 9))
                case 6:
                    machine.manager.commit(inputs[0])
                case _ if len(machine.handles) > 3:
                    machine.forget(inputs[0])
        except OutOfCapacity:
            pass  # and nothing is lost by it
        machine.check()
        watch()
