"""Records what has been computed, and how it can be computed again. Torch-free.

A **value** is one content of a storage; a **call** is an operator that made values of others. A value that is not
resident is rematerialised by recomputing its call.

INVARIANTS
- Strong references go value -> call -> inputs only, in time. `readers` are the calls that read a value; a call leaves
  the ledger when none of its outputs is needed, and then its inputs no longer count it.
- A value is *needed* while a handle is alive, while it is pinned, or while a call in the ledger reads it.
- `evictable` has exactly the values that are resident, unpinned, made by a call, in the order in which
  they became so. Policies look at them in this order, so that equal runs decide equally.
- A *leaf* has no call: nothing can recompute it, so it is kept while it is needed.
- A *view* has no bytes: it shares those of its `root`, goes when they go, and is recomputed by its own call. A runtime
  whose calls know their inputs' geometry makes none; recorded executions, which charge time for views, do.
- `clock` advances by the cost of every call run, recomputations included. Costs are whole nanoseconds.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_VIEW_B = 0  # where a view lies: nowhere of its own


@dataclass(slots=True, eq=False)
class Value:
    """One content of a storage.

    Arguments:
        id: ascending from 1, in order of making.
        size_B: 0 for a view.
        call: what makes it; None for a leaf.
        place: among the outputs of its call.
        root: whose bytes it has: itself, unless it is a view.
        cost_ns: of a root: all calls that make it and its views, each once.
        offset_B: where it lies; None when it is not resident.
        pins: of a root: how often somebody said that it must remain resident.
        last_use: of a root: the clock when it was read or made.
        alive: a handle of the user's exists.
        on_host: a copy lies in host memory.
    """

    id: int
    size_B: int
    call: Call | None
    place: int = 0
    root: Value = field(init=False, repr=False)
    cost_ns: int = 0
    offset_B: int | None = None
    pins: int = 0
    last_use: int = 0
    alive: bool = True
    on_host: bool = False
    readers: dict[int, Call] = field(default_factory=dict, repr=False)
    views: list[Value] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.root = self

    @property
    def resident(self) -> bool:
        return self.offset_B is not None

    @property
    def is_view(self) -> bool:
        return self.root is not self


@dataclass(slots=True, eq=False)
class Call:
    """One operator that was run.

    Arguments:
        id: ascending from 1, in order of first runs.
        inputs: in the order of its arguments; a value may come twice.
        outputs: what it made. Some may have become leaves since: then `output.call` is no longer this call.
        temps_B: workspaces that it takes and gives back.
        consumes: pairs (index of an input, index of an output): the output is written over the input's bytes.
        replay_record: how to run it; the executor's.
    """

    id: int
    name: str
    inputs: tuple[Value, ...]
    cost_ns: int
    temps_B: tuple[int, ...] = ()
    consumes: tuple[tuple[int, int], ...] = ()
    replay_record: Any = field(default=None, repr=False)
    outputs: tuple[Value, ...] = field(default=(), repr=False)

    def makes(self, value: Value) -> bool:
        """Whether running it rematerialises this value."""
        return value.call is self


class Ledger:
    """The values and calls of one run."""

    def __init__(self) -> None:
        self.clock = 1
        self.values: dict[int, Value] = {}
        self.evictable: dict[int, Value] = {}
        self.next_id = 1
        self._next_call = 1

    def leaf(self, size_B: int, offset_B: int) -> Value:
        """Notes a value that no call makes, resident at `offset_B`."""
        value = self._value(size_B, None, 0)
        value.offset_B = offset_B
        value.last_use = self.clock
        return value

    def call(
        self,
        name: str,
        inputs: Sequence[Value],
        sizes_B: Sequence[int],
        cost_ns: int,
        *,
        views: Mapping[int, Value] | None = None,
        temps_B: Sequence[int] = (),
        consumes: Sequence[tuple[int, int]] = (),
        replay_record: object = None,
    ) -> Call:
        """Notes an operator. Its outputs are not resident yet: see `hold`.

        Arguments:
            sizes_B: of its outputs.
            views: outputs that are views, by index, with what they are views of.
            temps_B, consumes, replay_record: see `Call`.
        """
        views = views or {}
        call = Call(self._next_call, name, tuple(inputs), cost_ns, tuple(temps_B), tuple(consumes), replay_record)
        self._next_call += 1
        roots: dict[int, Value] = {}
        outputs = []
        for place, size_B in enumerate(sizes_B):
            value = self._value(size_B, call, place)
            if place in views:
                value.root = views[place].root
                value.root.views.append(value)
            roots[value.root.id] = value.root
            outputs.append(value)
        for root in roots.values():
            root.cost_ns += cost_ns
        call.outputs = tuple(outputs)
        for value in call.inputs:
            value.readers[call.id] = call
        return call

    def _value(self, size_B: int, call: Call | None, place: int) -> Value:
        value = Value(self.next_id, size_B, call, place)
        self.values[value.id] = value
        self.next_id += 1
        return value

    def touch(self, value: Value) -> None:
        """Notes an access."""
        value.root.last_use = self.clock

    def hold(self, value: Value, offset_B: int = _VIEW_B) -> None:
        """Notes that the value is resident from now on."""
        value.offset_B = offset_B
        if not value.is_view:
            self._file(value)

    def drop(self, value: Value) -> None:
        """Notes that a root's bytes are gone, and its views with them."""
        value.offset_B = None
        self.evictable.pop(value.id, None)
        for view in value.views:
            view.offset_B = None

    def pin(self, value: Value) -> None:
        """Says that the value's bytes must be kept."""
        root = value.root
        root.pins += 1
        self.evictable.pop(root.id, None)

    def unpin(self, value: Value) -> None:
        """Takes one pin back."""
        root = value.root
        root.pins -= 1
        self._file(root)

    def commit(self, value: Value) -> list[Value]:
        """Makes a leaf of a resident root: its call no longer recomputes it.

        Returns: what left the ledger with it: see `forget`.
        """
        call, value.call = value.call, None
        value.cost_ns = 0
        self.evictable.pop(value.id, None)
        if call is None:
            return []
        gone: list[Value] = []
        for source in self._retire(call, gone):
            gone.extend(self.forget(source))
        return gone

    def take_over(self, old: Value, new: Value) -> None:
        """Gives `new` the bytes of `old`, which it was written over."""
        offset_B = old.offset_B
        assert offset_B is not None
        self.drop(old)
        self.hold(new, offset_B)

    def descendants(self, value: Value) -> Iterator[Value]:
        """Every root that some call recomputes from `value`, nearest first."""
        seen = {value.id}
        queue = [value]
        for source in queue:
            for tensor in (source, *source.views):
                for call in tensor.readers.values():
                    for output in call.outputs:
                        root = output.root
                        if call.makes(output) and root.id not in seen:
                            seen.add(root.id)
                            queue.append(root)
                            yield root

    def dependents(self, leaf: Value) -> list[Value]:
        """What is alive and comes from `leaf`, in the order in which to keep it when `leaf` is about to change.

        All of it has to be resident in the end. What is resident goes first, so that none of it is evicted for the
        others' sake.
        """
        alive = [root for root in self.descendants(leaf) if root.alive]
        return sorted(alive, key=lambda root: (not root.resident, root.id))

    def needed(self, value: Value) -> bool:
        """See the module."""
        return value.alive or value.root.pins > 0 or bool(value.readers)

    def forget(self, value: Value) -> list[Value]:
        """Releases a value, and what only it kept, where nothing needs them.

        Returns: what left the ledger, in order; the bytes of those that are resident are the caller's to free.
        """
        gone: list[Value] = []
        stack = [value]
        while stack:
            value = stack.pop()
            if value.id not in self.values or self.needed(value):
                continue
            if value.call is None:
                gone.append(self._remove(value))
            else:
                stack.extend(self._retire(value.call, gone))
        return gone

    def _retire(self, call: Call, gone: list[Value]) -> tuple[Value, ...]:
        """Takes a call out, and adds its outputs to `gone`, unless one is needed; returns what it no longer reads."""
        made = [output for output in call.outputs if call.makes(output)]
        if any(self.needed(output) for output in made):
            return ()
        gone.extend(self._remove(output) for output in made)
        for source in call.inputs:
            source.readers.pop(call.id, None)
        return call.inputs

    def _remove(self, value: Value) -> Value:
        del self.values[value.id]
        self.evictable.pop(value.id, None)
        if value.is_view:
            value.root.views.remove(value)
        return value

    def _file(self, root: Value) -> None:
        if root.pins == 0 and root.offset_B is not None and root.call is not None:
            self.evictable[root.id] = root
