"""The runtime in Python: the one that is read, and that the compiled one is compared with.

It composes the parts: an arena of values, the keeper with its policy, the performer, the dispatch mode, and the hooks
on gradients and optimizers. One thread opens and closes it.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.device.arena import nothing_engaged
from lowtide.eager_engine.arrivals import Arrivals
from lowtide.eager_engine.bodies import Bodies, bytes_of
from lowtide.eager_engine.eager_arena import arena_of
from lowtide.eager_engine.eager_stats import EagerStats
from lowtide.eager_engine.gradients import Gradients
from lowtide.eager_engine.homes import Homes
from lowtide.eager_engine.interception import Interceptor, has_bytes, is_plain
from lowtide.eager_engine.interrupts import Interrupts
from lowtide.eager_engine.keeper import Keeper
from lowtide.eager_engine.kernels import Kernels
from lowtide.eager_engine.ledger import Ledger, Value
from lowtide.eager_engine.mode import EagerMode
from lowtide.eager_engine.openings import Bytes
from lowtide.eager_engine.operators import Operator
from lowtide.eager_engine.performer import StoragePerformer
from lowtide.eager_engine.policies.base import AbstractPolicy
from lowtide.eager_engine.recorder import Recorder
from lowtide.eager_engine.slab_room import SlabRoom
from lowtide.eager_engine.steps import Steps


class InterpretedRuntime:
    """See the module.

    Arguments:
        budget_B: of the arena.
        policy: fresh.
        record: where an execution trace is written; None: nowhere.
    """

    name = "python"

    def __init__(self, budget_B: int, policy: AbstractPolicy, *, record: str | Path | None = None) -> None:
        self._budget_B = budget_B
        self._policy = policy
        self._interrupts = Interrupts()
        self._recorder = Recorder(record)
        self.arena = arena_of(budget_B)
        self._ledger = Ledger()
        self._bodies = Bodies(self.arena)
        self._room = SlabRoom(self.arena, self._bodies)
        self._kernels = Kernels(self.arena, self._bodies, self._room, self._recorder, budget_B)
        self._performer = StoragePerformer(self.arena, self._bodies, self._kernels.attempt, self._kernels.likeness)
        self._keeper = Keeper(self._ledger, self._room, policy, self._performer)
        self._kernels.keeper, self._kernels.performer = self._keeper, self._performer
        self._homes = Homes(self.arena, self._bodies, self._ledger, self._performer)
        self._gradients = Gradients(self._gradient_landed)
        self._arrivals = Arrivals(
            self.arena, self._bodies, self._ledger, self._kernels, self._homes, self._recorder, self._gradients.watch
        )
        self._steps = Steps(self._keeper, self._kernels.sweep)
        self._performer.watch = self._steps.reran
        self._interceptor = Interceptor(
            self._bodies, self._keeper, self._arrivals, self._kernels, self._steps, self._recorder
        )
        self._mode: EagerMode | None = None
        self._spilled_B = 0

    # The context

    def open(self) -> None:
        """Engages the arena and begins to intercept, in the calling thread."""
        self._recorder.begin()
        self._interrupts.begin()
        self.arena.engage()
        self.arena.set_pressure(self._kernels.relieve)
        self._mode = EagerMode(self._perform, self._interceptor.value_of)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> int:
        """Brings back whatever is alive, and stops intercepting.

        Returns: bytes that found no room inside the budget and lie beside it.
        """
        mode, self._mode = self._mode, None
        assert mode is not None
        self._interrupts.hold()
        try:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._gradients.close()
            return self._restore_all()
        finally:
            self.arena.set_pressure(None)
            self.arena.disengage()
            self._kernels.catch_up()
            self._forget_all()
            self._recorder.end()
            self._interrupts.let_go()
            self._interrupts.end()

    def leave_child(self) -> None:
        """In a forked process: operators run as they are."""
        if self._mode is not None:
            self._mode.stop()

    def bring_home(self, tensors: Iterable[Tensor]) -> None:
        """Moves parameters, buffers and state into the arena, where they stay.

        Raises:
            torch.OutOfMemoryError: if they do not fit.
        """
        for tensor in tensors:
            self._kernels.catch_up()
            if is_plain(tensor):
                self._arrivals.bring_home(tensor)

    def optimizer_began(self) -> None:
        """The optimizer's own arithmetic runs from now on."""
        self._steps.optimizer_began()

    def optimizer_ended(self, state: Iterable[Tensor]) -> None:
        """It has ended, and this is the state that it keeps."""
        self._steps.optimizer_ended()
        with _disable_current_modes():
            self.bring_home(state)

    def reach(self, tensor: Bytes, for_good: bool) -> None:
        """Brings a tensor's bytes back for code that is about to read them past torch's operators.

        Arguments:
            for_good: whoever reads keeps their address: they are neither evicted nor moved any more.
        """
        self._kernels.catch_up()
        with _disable_current_modes():
            if isinstance(tensor, Tensor) and not is_plain(tensor):
                return
            value = self._bodies.by_address.get(_storage(tensor)._cdata)
            if value is None and for_good and isinstance(tensor, Tensor) and not _has_fractions(tensor):
                value = self._interceptor.value_of(tensor)
            if value is None:
                return
            if for_good:
                self._kernels.commit(value)
                self._bodies[value].fixed = True
            elif not value.resident:
                with self._kernels.entered((value,), ""):
                    pass

    def share(self, tensor: Bytes) -> None:
        """Brings a tensor's bytes back for code that may write to them past torch's operators, now or later.

        What was computed from them keeps a copy; from now on the storage is met like any other that is shared.
        """
        with _disable_current_modes():
            if isinstance(tensor, Tensor) and not has_bytes(tensor):
                return
            storage = _storage(tensor)
            self._arrivals.part(storage)
            torch._C.TensorBase.numpy(bytes_of(storage))  # torch says of what numpy has seen that it is shared

    def write(self, tensor: Bytes) -> None:
        """Sees to it that nothing will need what a tensor holds: it is about to be written past torch's operators."""
        self._kernels.catch_up()
        with _disable_current_modes():
            value = self._bodies.by_address.get(_storage(tensor)._cdata)
            if value is not None:
                self._kernels.commit(value)
                self._kernels.settle_dependents(value)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Operators run as they are inside; what they allocate is met later, as what nobody can make again."""
        with _disable_current_modes():
            yield

    def stats(self) -> EagerStats:
        """See `EagerStats`."""
        done = self._keeper.statistics
        return EagerStats(
            budget_B=self._budget_B,
            peak_B=self.arena.stats().peak_B,
            calls=self._steps.calls,
            cost_ns=self._steps.cost_ns,
            reruns=done.reruns,
            rerun_ns=done.rerun_ns,
            evictions=done.evictions,
            evicted_B=done.evicted_B,
            requests=done.searches,
            searches=done.searches,
            candidates=done.candidates,
            search_s=done.search_s,
            fragmentation=done.fragmentation,
            moves=done.moves,
            moved_B=done.moved_B,
            retries=self._kernels.retries,
            sent_B=done.sent_B,
            fetched_B=done.fetched_B,
            fetches=done.fetches,
            departures=self._policy.departures,
            foreign_B=self._arrivals.foreign_B,
            spilled_B=self._spilled_B,
            steps=tuple(self._steps.costs),
            runtime=self.name,
            policy=self._policy.name,
            digest=done.digest,
        )

    # Its own

    def _perform(self, op: Operator, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._interrupts.hold()
        try:
            return self._interceptor.perform(op, func, args, kwargs)
        finally:
            self._interrupts.let_go()

    def _gradient_landed(self, gradient: Tensor) -> None:
        if not is_plain(gradient):
            return
        self._kernels.catch_up()
        with _disable_current_modes():
            value = self._interceptor.value_of(gradient)
            if value is not None:
                self._kernels.commit(value)
                self._homes.admit(value)

    def _alive(self) -> Iterator[Value]:
        """Values that the program sees, in order of making."""
        self._kernels.sweep()
        for value in sorted(self._ledger.values.values(), key=lambda v: v.id):
            if value.id in self._ledger.values and value.alive:
                yield value

    def _restore_all(self) -> int:
        """Commits what is alive; what does not fit lies beside the arena afterwards. Returns how many bytes."""
        late: list[Value] = []
        if self._interceptor.is_spoilt:  # what is evicted stays so, and whoever touches it is told
            return 0
        for value in self._alive():
            try:
                self._kernels.commit(value)
            except torch.OutOfMemoryError:
                late.append(value)
        if late:
            gc.collect()  # graphs in cycles are alive until somebody looks
            self._kernels.sweep()
            late = [value for value in late if value.alive]
        with nothing_engaged():
            for value in late:
                self._kernels.commit(value)
        self._spilled_B += sum(value.size_B for value in late)
        return sum(value.size_B for value in late)

    def _forget_all(self) -> None:
        """Lets go of every value: what the program sees it keeps."""
        for body in self._bodies:
            self._bodies.forget(body.value)
        for value in list(self._ledger.values.values()):
            value.alive = False


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _storage(given: Bytes) -> torch.UntypedStorage:
    return given.untyped_storage() if isinstance(given, Tensor) else given
