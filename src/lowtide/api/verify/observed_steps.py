"""Every operator of a step with digests of what it read and made: of a plain step, and of a planned one's recipes."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections import Counter
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from lowtide.capture.origin import is_users_file, place
from lowtide.device.arena import nothing_engaged
from lowtide.device.digest import content_digest
from lowtide.device.engines import Engines
from lowtide.device.operator_trace import OperatorTrace
from lowtide.ir.graph import Graph, Origin
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.schedule import Run, Schedule
from lowtide.results.verification import Content, Ran, Spot, Task
from lowtide.runtime.executor import Loaded, load
from lowtide.runtime.hard_budget import PlacedSegments
from lowtide.session.active_plans import ActivePlans
from lowtide.session.graph_discovery import Call


class ObservedPlain:
    """A context in which plain PyTorch's operators are noted.

    Arguments:
        model: whose modules are named.
        segment: "forward" or "backward", as whoever takes the step says.
    """

    held = None
    segment = "forward"

    def __init__(self, model: torch.nn.Module) -> None:
        self.ran: list[Ran] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._inside: list[str] = []
        self._step = 0
        self._exit = contextlib.ExitStack()

    def begin(self, step: int) -> None:
        """Notes that a step begins, from 0."""
        self._step, self.segment = step, "forward"

    def __enter__(self) -> ObservedPlain:
        entering = register_module_forward_pre_hook(self._enter_module)
        self._exit.callback(entering.remove)
        self._exit.callback(register_module_forward_hook(self._leave_module, always_call=True).remove)
        self._exit.enter_context(OperatorTrace(self._note))
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def _enter_module(self, module: torch.nn.Module, _: Any) -> None:
        self._inside.append(self._names.get(id(module), ""))

    def _leave_module(self, *_: Any) -> None:
        self._inside.pop()

    def _note(self, operator: str, made: list[torch.Tensor], overwritten: list[torch.Tensor]) -> None:
        origin = self._origin()
        self.ran.append(
            Ran(
                operator=operator,
                origin=origin,
                step=self._step,
                graph=-1,
                segment=self.segment,
                made=tuple(Content(-1, "", content_digest(t)) for t in made),
                read=tuple(Content(-1, "", content_digest(t)) for t in overwritten),
            )
        )

    def _origin(self) -> Origin:
        if not self._inside:
            return Origin()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_users_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return Origin(module=self._inside[-1])
        file, line = frame.f_code.co_filename, frame.f_lineno
        return Origin(self._inside[-1], place(file, line), linecache.getline(file, line).strip())


class ObservedRuns:
    """Notes every recipe that a fitted model runs, from its next plan on.

    Arguments:
        active_plans: its plans.
        task: whether they run as planned, or as captured; which result is held.
    """

    segment = "forward"  # each recipe says which it belongs to

    def __init__(self, active_plans: ActivePlans, task: Task) -> None:
        self.ran: list[Ran] = []
        self.held: tuple[str, torch.Tensor] | None = None  # name and content of the value that the task names
        self._task, self._step = task, 0
        self._order: list[_Part] = []  # graphs in the order in which they ran in this step
        self._times: Counter[tuple[int, int, int]] = Counter()
        active_plans.loader = self._load

    def begin(self, step: int) -> None:
        """Notes that a step begins, from 0."""
        self._step, self._order = step, []

    def graph(self, part: _Part) -> int:
        """The place of a graph in the order of this step's."""
        if part not in self._order:
            self._order.append(part)
        return self._order.index(part)

    def note(self, part: _Part, step: Run, read: tuple[Content, ...], made: tuple[Any, ...]) -> None:
        """Notes a recipe that has run."""
        recipe, number = part.graph.recipes[step.recipe], self.graph(part)
        contents = part.contents(step.keep, made)
        segment = part.graph.segments[recipe.segment].name.partition(" ")[0]
        self.ran.append(Ran(recipe.op, recipe.origin, self._step, number, segment, contents, read))
        for value, tensor in zip(step.keep, made, strict=True):
            key = (self._step, number, value)
            if self._task.hold == Spot(*key, self._times[key]):
                with nothing_engaged():
                    self.held = (part.graph.values[value].name, tensor.detach().to("cpu", copy=True))
            self._times[key] += 1

    def _load(
        self, call: Call, graph: Graph, schedule: Schedule, placed: PlacedSegments | None, engines: Engines | None
    ) -> Loaded:
        if self._task.kind == "captured":
            graph, placed, engines = call.specialised.graph, None, None
            schedule = keep_all_schedule(graph)
        observer = _Part(self, graph)
        return load(graph, schedule, call.interfaces, call.specialised.held, placed, engines, observer)


class _Part:
    """One graph of a step, while its code runs."""

    def __init__(self, runs: ObservedRuns, graph: Graph) -> None:
        self._runs, self.graph = runs, graph
        self._read: tuple[Content, ...] = ()

    def reads(self, step: Run, tensors: tuple[Any, ...]) -> None:
        self._read = self.contents(self.graph.recipes[step.recipe].read_values, tensors)

    def made(self, step: Run, tensors: tuple[Any, ...]) -> None:
        self._runs.note(self, step, self._read, tensors)

    def contents(self, values: tuple[int, ...], tensors: tuple[Any, ...]) -> tuple[Content, ...]:
        known = self.graph.values
        return tuple(
            Content(v, known[v].name, content_digest(t), known[v].arrives == 1)
            for v, t in zip(values, tensors, strict=True)
        )
