"""The Python face of the engine behind `lowtide.eager`. `_shim/eager/runtime.hpp` is its design document.

The engine sees operators below Python. What is left to Python happens rarely: hooks on parameters, the marks around an
optimizer's step, and the recording of a trace.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from lowtide.device import eager_shim, shim
from lowtide.device.arena import Arena
from lowtide.device.openings import Bytes
from lowtide.eager_engine.eager_stats import EagerStats
from lowtide.eager_engine.gradients import Gradients
from lowtide.eager_engine.recorder import Recorder
from lowtide.eager_engine.wrong_schemas import COMMUNICATING, TRUSTED, UNDECLARED_VIEWS, WRONG_SCHEMAS
from lowtide.errors import BudgetWarning

_SMALL_PART = 128
"""This part of the budget, at the very top of the arena, is for single numbers."""
_MOST_SMALL_B = 64 * 1024


class EagerRuntime:
    """Runs one context: serves its thread from an arena, intercepts its operators, and evicts and recomputes tensors.

    The thread that opens it calls everything else.

    Arguments:
        budget_B: of the arena.
        policy: the name of one.
        host_budget_B: bytes of host memory for what is evicted.
        link_Bps: of the copies there and back; 0: none are made.
        record: where an execution trace is written; None: nowhere.

    Raises:
        ShimUnavailable: if it cannot be built or does not work here.
        ValueError: if there is no policy of that name.
    """

    def __init__(
        self,
        budget_B: int,
        policy: str,
        *,
        host_budget_B: int = 0,
        link_Bps: float = 0.0,
        record: str | Path | None = None,
    ) -> None:
        self._module = eager_shim.load()
        self._budget_B = budget_B
        self._policy = policy
        small_B = min(_MOST_SMALL_B, budget_B // _SMALL_PART)
        self.arena = Arena(budget_B, small_zone_B=small_B, persistent_B=0, values=True)
        landed = weakref.WeakMethod(self._gradient_landed)  # the compiled side holds the hooks, unseen by the collector
        self._gradients = Gradients(lambda gradient: _tell(landed, gradient))
        self._recorder = Recorder(record)
        self._runtime = self._module.Runtime(
            gates=shim.load().gates,
            slab=self.arena.slab,
            policy=policy,
            host_B=host_budget_B,
            link_Bps=link_Bps,
            hidden={name: (list(h.writes), list(h.spare), h.only_if, h.draws) for name, h in WRONG_SCHEMAS.items()},
            views=sorted(UNDECLARED_VIEWS),
            communicating=sorted(COMMUNICATING),
            trusted=sorted(TRUSTED),
            records=record is not None,
            met_parameter=self._gradients.watch,
            thrashes=_warn_of_thrashing,
        )

    def open(self) -> None:
        """Engages the arena and begins to intercept, in the calling thread."""
        self._recorder.begin()
        self.arena.engage()
        self._runtime.open()
        self._module.intercept(self._runtime)

    def close(self) -> int:
        """Rematerialises whatever is alive, and stops intercepting.

        Returns: bytes that did not fit into the budget and lie outside it.
        """
        self._module.intercept(None)
        self._gradients.close()
        try:
            return self._runtime.restore_all()
        finally:
            self.arena.disengage()
            try:
                self._write()
                self._recorder.end()
            finally:
                self._runtime.close()

    def leave_child(self) -> None:
        """In a forked process: operators run as they are."""
        self._module.intercept(None)

    def bring_in(self, tensors: Iterable[Tensor]) -> None:
        """Moves parameters, buffers and state into the arena, where they persist.

        Raises:
            torch.OutOfMemoryError: if they do not fit.
        """
        for tensor in tensors:
            self._runtime.bring_in(tensor)

    def optimizer_began(self) -> None:
        """The optimizer's own arithmetic runs from now on."""
        self._runtime.optimizer_began()

    def optimizer_ended(self, state: Iterable[Tensor]) -> None:
        """It has ended, and this is the state that it keeps."""
        self._runtime.optimizer_ended()
        self.bring_in(state)
        self._write()

    def reach(self, tensor: Bytes, for_good: bool, /) -> None:
        """Brings a tensor's bytes back for code that is about to read them past torch's operators.

        Arguments:
            for_good: whoever reads keeps their address: they are neither evicted nor moved any more.
        """
        self._runtime.reach(tensor, for_good)

    def share(self, tensor: Bytes, /) -> None:
        """Brings a tensor's bytes back for code that may write to them past torch's operators, now or later."""
        self._runtime.share(tensor)

    def write(self, tensor: Bytes, /) -> None:
        """Sees to it that nothing will need what a tensor holds: it is about to be written past torch's operators."""
        self._runtime.write(tensor)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Operators run as they are inside; what they allocate is met later, as what cannot be recomputed."""
        self._module.intercept(None)
        try:
            yield
        finally:
            self._module.intercept(self._runtime)

    def stats(self) -> EagerStats:
        """See `EagerStats`."""
        done: dict[str, Any] = self._runtime.stats()
        done["steps"] = tuple(done["steps"])
        return EagerStats(budget_B=self._budget_B, policy=self._policy, **done)

    def _write(self) -> None:
        """What the program did since the last time goes into the trace."""
        for what, name, inputs, made, consumed, cost_ns in self._runtime.take_diary():
            match what:
                case "leaf":
                    self._recorder.leaf(*made[0])
                case "call":
                    self._recorder.call(name, inputs, made, consumed, cost_ns)
                case "wrote":
                    self._recorder.wrote(name, inputs, [value for value, _ in made], cost_ns)
                case "kept":
                    self._recorder.kept(name, inputs, made, cost_ns)
                case "died":
                    self._recorder.died(inputs[0])
                case _:
                    self._recorder.settle()

    def _gradient_landed(self, gradient: Tensor) -> None:
        self._runtime.gradient_landed(gradient)


def _tell(whom: weakref.WeakMethod[Any], gradient: Tensor) -> None:
    """Calls a method of an object that is still there."""
    method = whom()
    if method is not None:
        method(gradient)


def _warn_of_thrashing() -> None:
    """Says that most of the time goes into recomputing. The engine calls it at most once, by its limit of ten times."""
    warnings.warn(
        "lowtide.eager recomputes more than ten times what the step itself costs: the budget is too small for this "
        "program. Raise it, or use lowtide.fit where the model can be captured: it plans ahead.",
        BudgetWarning,
        stacklevel=2,
    )
