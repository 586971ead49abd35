"""Where a training step ends, and when an optimizer is at work.

A step ends at the first write to a parameter after an operator ran that may be part of a forward or a backward: with
gradients on, or inside a backward. So it ends once, whether an optimizer writes or the program itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowtide.eager_engine.keeper import Keeper
from lowtide.eager_engine.ledger import Call
from lowtide.eager_engine.thrashing import Thrashing


class Steps:
    """See the module.

    Arguments:
        ended: called when a step ends.
    """

    def __init__(self, keeper: Keeper, ended: Callable[[], None]) -> None:
        self._keeper = keeper
        self._ended = ended
        self._is_open = False
        self._in_optimizer = False
        self.costs: list[tuple[int, int]] = []
        self.calls = 0
        self.cost_ns = 0
        self._before = (0, 0)
        self._thrashing = Thrashing()

    def optimizer_began(self) -> None:
        """An optimizer's step has begun."""
        self._in_optimizer = True
        self._end()

    def optimizer_ended(self) -> None:
        """It has ended."""
        self._in_optimizer = False

    @property
    def is_stepping(self) -> bool:
        """Whether what runs now is an optimizer's own arithmetic, and not the closure that it calls."""
        return self._in_optimizer and not _learns()

    def ran(self) -> None:
        """An operator has run."""
        if not self._is_open and not self._in_optimizer:
            self._is_open = _learns()

    def recorded(self, call: Call) -> None:
        """A call was noted."""
        self.calls += 1
        self.cost_ns += call.cost_ns

    def reran(self) -> None:
        """Something is made again: warns where that takes most of the time."""
        self._thrashing.reran(self._keeper.statistics.rerun_ns, self.cost_ns - self._before[0])

    def wrote(self, *, is_parameter: bool) -> None:
        """The program is about to write to a leaf."""
        if is_parameter:
            self._end()

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        now = (self.cost_ns, self._keeper.statistics.rerun_ns)
        self.costs.append((now[0] - self._before[0], now[1] - self._before[1]))
        self._thrashing.step_ended(now[1], now[0] - self._before[0])
        self._before = now
        self._ended()
        self._keeper.step_ended()


def _learns() -> bool:
    """Whether gradients are on, or a backward runs."""
    return torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1
