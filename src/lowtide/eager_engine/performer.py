"""Carries out under torch what the keeper decides: drops storages, runs operators again, moves bytes.

Reruns happen below autograd, with no mode in force, into storages of their own; bytes that the program is to see are
then taken over by its storage without a copy. Nothing here decides anything.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.device import storage as storages
from lowtide.device.arena import Arena, nothing_engaged
from lowtide.eager_engine.bodies import NOWHERE, Bodies, bytes_of
from lowtide.eager_engine.closure import Closure, as_first_run
from lowtide.eager_engine.copies import Copies
from lowtide.eager_engine.forecasts import Likeness
from lowtide.eager_engine.ledger import Call, Value
from lowtide.eager_engine.randomness import Draw
from lowtide.eager_engine.room import Move
from lowtide.errors import StorageError

GONE = (
    "lowtide: the bytes of this tensor were evicted to keep a budget, and are brought back by operators that the "
    "thread of the open lowtide.eager runs. What touches them otherwise (another thread, a library that takes "
    "addresses) has to ask for a copy first: tensor.clone(), in that thread."
)


class Vanished(Exception):
    """Another thread, or the garbage collector, has let go of a value that was alive; it has to be made again, too."""


_Attempt = Callable[[str, Callable[[], Any], Draw | None, bool, Likeness | None, Copies | None], Any]
_Likeness = Callable[[str, tuple[Any, ...], dict[str, Any]], Likeness | None]


class StoragePerformer:
    """See the module.

    Arguments:
        attempt: runs a kernel: its name, what it is, what it draws, whether it writes to none of its arguments but
            copies, what it is like, and these copies.
        likeness: says that of a closure: name, arguments.
        watch: called whenever something is made again; set once it is there.
    """

    def __init__(self, arena: Arena, bodies: Bodies, attempt: _Attempt, likeness: _Likeness) -> None:
        self._arena = arena
        self._bodies = bodies
        self._attempt = attempt
        self._likeness = likeness
        self.watch: Callable[[], None] = lambda: None
        self._running: frozenset[int] = frozenset()
        self._on_host: dict[int, torch.Tensor] = {}  # copies of values, by id

    def running(self, values: Iterable[Value]) -> frozenset[int]:
        """Says what the kernel that runs from now on was given: none of it moves. Returns what was said before."""
        before, self._running = self._running, frozenset(value.id for value in values)
        return before

    def resume(self, before: frozenset[int]) -> None:
        """Takes back what `running` said."""
        self._running = before

    def release(self, value: Value) -> None:
        """See `keeper.Performer`."""
        body = self._bodies.get(value)
        if body is None:  # its storage died, and the bytes went with it
            return
        if not (body.weak and value.alive):
            self._bodies.forget(value)
            return
        storage = body.storage()
        if storage is None or storages.is_dropped(storage):
            return
        try:
            storages.drop(storage, GONE, self._arena, value.id)
        except StorageError:  # somebody took its address: the bytes stay, and are found again by `_keep`
            body.fixed = True

    def rerun(self, call: Call, keep: Callable[[int], bool], over: Mapping[int, Value]) -> Sequence[int]:
        """See `keeper.Performer`."""
        closure: Closure = call.closure
        self.watch()
        before = self.running(call.inputs)
        given: list[torch.UntypedStorage] = []
        arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        copies: Copies | None = None

        def kernel() -> Any:
            arguments[:] = [closure.arguments(given)]  # anew: a try that failed may have given a result its size
            return closure.func(*arguments[0][0], **arguments[0][1])

        try:
            given.extend(self._storage(value) for value in call.inputs)
            with as_first_run(closure):
                copies = Copies(given, [source for source, output in call.consumes if output not in over])
                like = self._likeness(call.name, closure.args, closure.kwargs)
                results = self._attempt(call.name, kernel, closure.draw, not over, like, copies)
            made = closure.made(results, given)
            offsets_B = [NOWHERE] * len(made)
            for place, storage in enumerate(made):
                if keep(place):
                    if place in over:
                        self._bodies.forget(over[place])
                    offsets_B[place] = self._keep(call.outputs[place], storage)
            return offsets_B
        finally:
            self.resume(before)
            given.clear()  # the traceback of an error would keep the bytes
            arguments.clear()
            if copies is not None:
                copies.end()

    def movable(self, value: Value) -> bool:
        """See `keeper.Performer`."""
        body = self._bodies.get(value)
        if body is None or body.fixed or value.id in self._running:
            return False
        storage = body.storage()
        return storage is not None and not storages.is_dropped(storage) and not storages.objection(storage)

    def moved(self, moves: Sequence[Move]) -> None:
        """The room has moved the bytes too."""

    def send(self, value: Value) -> bool:
        """See `keeper.Performer`; host memory is the system's, beside the arena."""
        try:
            storage = self._storage(value)
        except Vanished:  # another thread has just let go of it
            return False
        with nothing_engaged(), _disable_current_modes():
            self._on_host[value.id] = bytes_of(storage).clone()
        del storage
        self.release(value)
        return True

    def fetch(self, value: Value) -> int:
        """See `keeper.Performer`."""
        size_B = value.size_B
        before = self.running(())
        try:
            with _disable_current_modes():
                made: torch.Tensor = self._attempt(
                    "copy from the host",
                    lambda: torch.empty(size_B, dtype=torch.uint8, device="cpu"),
                    None,
                    True,
                    None,
                    None,
                )
                made.copy_(self._on_host.pop(value.id))
        finally:
            self.resume(before)
        return self._keep(value, made.untyped_storage())

    def discard(self, value: Value) -> None:
        """See `keeper.Performer`."""
        del self._on_host[value.id]

    def _storage(self, value: Value) -> torch.UntypedStorage:
        body = self._bodies.get(value)
        if body is not None and body.aside is not None:
            return body.aside
        storage = None if body is None else body.storage()
        if storage is None:
            raise Vanished
        return storage

    def _keep(self, value: Value, storage: torch.UntypedStorage) -> int:
        """Gives an output's bytes to whom they belong; returns where they lie."""
        if storage.nbytes() != value.size_B:
            raise AssertionError(f"value {value.id} has {value.size_B} B and came back with {storage.nbytes()} B")
        body = self._bodies.get(value)
        seen = body.storage() if body is not None and body.weak else None
        if seen is None:
            self._bodies.hide(value, storage)
            return self._bodies.own(value, storage)
        if storages.is_dropped(seen):
            storages.steal(seen, storage)
        return self._bodies.own(value, seen)
