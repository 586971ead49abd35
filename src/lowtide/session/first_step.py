"""The first step of a model that breaks into several graphs: a real one, run graph by graph as the graphs are met.

Which graphs a step has is known when its forward has ended, so nothing can be planned for all of them before. Each
graph runs by a provisional plan that keeps as little as a short search can keep; what was met is then planned as one,
for the steps that follow. What code between the graphs takes in the backward is known when that has run, and counts
from the second step on. The model's own Python runs once.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.arena import nothing_engaged
from lowtide.device.engine_passes import at_end_of_backward
from lowtide.device.generator_guard import GeneratorStates
from lowtide.device.observer import Observer, observe_if_free
from lowtide.device.storage import identity_of
from lowtide.errors import InfeasibleBudget, LowtideError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import Schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.runtime.codegen import Segment
from lowtide.session.graph_discovery import Call

_GRADIENTS = 3  # of the largest tensor that code between graphs made, at a time: of a result, of two of its inputs
_UNTOLD = "; nothing has been changed."
_UNDONE = (
    "Parts of the model had run before this was known. Buffers that captured graphs overwrite, and the random "
    "generators of torch, Python and numpy, have been put back; no parameter and no gradient has been changed. What "
    "the model's own Python code changed besides (attributes, lists, files) has not been put back."
)


@dataclass(eq=False)
class FirstStep:
    """A first step in progress.

    Arguments:
        calls: of the graphs met so far, in order.
        between_B: most bytes that code between the graphs held at once.
        device: torch device type of those bytes.
    """

    calls: list[Call] = field(default_factory=list)
    between_B: int = 0
    _largest_B: int = 0  # of one allocation of such code in the forward
    _held_B: int = 0  # by code between the graphs, at the end of the forward or so far
    _forward_has_ended: bool = False
    device: str = "cpu"
    _observer: Observer | None = None

    def note_results(self, results: Sequence[Any], count: int) -> None:
        """Notes where the results of the graph that was met last lie, for graphs that are given them."""
        self.calls[-1].outputs = tuple(identity_of(r) for r in results[:count])

    def graph_ended(self, *, observes: bool) -> None:
        """Code between two graphs begins."""
        self._observer = observe_if_free(self.device, yields=True) if observes else None
        if self._observer is not None:
            self._observer.__enter__()

    def graph_begins(self) -> None:
        """Code between two graphs has ended."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.__exit__(None, None, None)
            self.between_B = max(self.between_B, self._held_B + observer.peak_B)
            if not self._forward_has_ended:
                self._held_B = max(0, self._held_B + observer.end_B)
                self._largest_B = max(0, self._largest_B, *(e.size_B for e in observer.events))

    def forward_ended(self) -> None:
        """The code behind the last graph has ended; what follows is the backward, of which a guess is made."""
        self.graph_begins()
        self._forward_has_ended = True
        self.between_B = max(self.between_B, self._held_B + _GRADIENTS * self._largest_B)

    def watching(self, backward: Segment) -> Segment:
        """A graph's backward, behind which the code that runs until the next one is observed."""

        def watched(arguments: list[Any]) -> tuple[Any, ...]:
            self.graph_begins()
            results = backward(arguments)
            if at_end_of_backward(self.graph_begins):
                self.graph_ended(observes=True)
            return results

        return watched

    def __del__(self) -> None:
        self.graph_begins()  # a backward that failed may have left an observation open


def provisional_schedule(graph: Graph) -> Schedule:
    """A schedule that takes as few bytes as a short search finds, for a graph that is planned by itself.

    Arguments:
        graph: measured, as captured.
    """
    found = Portfolio().solve(Problem(graph, budget_B=0)).smallest
    schedule = keep_all_schedule(graph) if found is None else found
    check(graph, schedule)
    return schedule


class Undo:
    """Restores what a step changes in its forward, if the step is refused after parts of it have run."""

    def __init__(self) -> None:
        self._generators = GeneratorStates.now()
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copies tensors that may be overwritten, where that has not been done in this step.

        Arguments:
            tensors: parameters among them are left alone: they are too large.
        """
        with nothing_engaged():
            for tensor in tensors:
                if id(tensor) not in self._copies and not isinstance(tensor, torch.nn.Parameter):
                    self._copies[id(tensor)] = (tensor, tensor.detach().clone())

    def put_back(self) -> None:
        """Gives the tensors and the generators back what they had."""
        self._generators.put_back()
        for tensor, copy in self._copies.values():
            tensor.data.copy_(copy)  # batch norm counts no version, and giving back must not count one


@contextmanager
def undone_where_refused(undo: Undo | None, has_run: Callable[[], bool]) -> Iterator[None]:
    """Inside, what a step has changed is put back where it ends with an error of lowtide's, and the error says so.

    Arguments:
        undo: what it may have changed; None where nothing of it can have run.
        has_run: tells whether parts of the model have run.
    """
    try:
        yield
    except LowtideError as error:
        if undo is None or not has_run():
            raise
        undo.put_back()
        if isinstance(error, InfeasibleBudget):
            raise InfeasibleBudget(
                f"{str(error).replace(_UNTOLD, '.')}\n{_UNDONE}",
                budget_B=error.budget_B,
                floor_B=error.floor_B,
                smallest_B=error.smallest_B,
                operators=error.operators,
                proof=error.proof,
                host_budget_B=error.host_budget_B,
            ) from error
        error.add_note(_UNDONE)
        raise
