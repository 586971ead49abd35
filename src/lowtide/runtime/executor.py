"""Runs the plan in force for each call of one captured graph.

A forward looks its plan up by shape; the token that it hands on tells its backward which plan that was, however
many plans were exchanged in between.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.semiprivate import compiled_autograd_enabled
from lowtide.errors import BackwardError, CaptureError
from lowtide.ir.graph import Graph
from lowtide.ir.interface import Interface
from lowtide.ir.schedule import Schedule
from lowtide.runtime.codegen import Segment, generate

Key = tuple[int | float | bool, ...]
_RECENT = 64  # plans kept alive for backwards whose token lost its attribute (a saved-tensor hook that clones)
_NUMBER = itertools.count(1)


@dataclass(eq=False)
class Loaded:
    """A schedule as code.

    Arguments:
        segments: one function per segment of the graph.
        token: an integer tensor whose value is `number`; it also refers to this object.
    """

    number: int
    segments: tuple[Segment, ...]
    token: torch.Tensor


def load(graph: Graph, schedule: Schedule, interfaces: Sequence[Interface], held: Sequence[Any]) -> Loaded:
    """Generates the code of a schedule."""
    number = next(_NUMBER)
    token = torch.tensor([number], dtype=torch.int64)
    segments = generate(graph, schedule, interfaces, held, token, torch.empty(0))
    loaded = Loaded(number, segments, token)
    token._lowtide_plan = loaded  # type: ignore[attr-defined]
    return loaded


@dataclass(eq=False)
class PlannedExecutor:
    """Stands in for one captured graph.

    Arguments:
        key_of: what distinguishes the shapes of a call.
        plan_for: called with the arguments when no plan is in force for a key; installs and returns one, or
            raises before anything has run.
        token_at: index of the token among the backward's arguments.
        always_ask: while true, `plan_for` is asked even where a plan is in force.
        forwards, backwards: how often this really ran: the proof that a step did not go past the plan.
    """

    key_of: Callable[[Sequence[Any]], Key]
    plan_for: Callable[[PlannedExecutor, Key, Sequence[Any]], Loaded]
    token_at: int
    always_ask: Callable[[], bool] = lambda: False
    forwards: int = 0
    backwards: int = 0
    _in_force: dict[Key, Loaded] = field(default_factory=dict)
    _by_number: weakref.WeakValueDictionary[int, Loaded] = field(default_factory=weakref.WeakValueDictionary)
    _recent: OrderedDict[int, Loaded] = field(default_factory=OrderedDict)

    def install(self, key: Key, loaded: Loaded) -> None:
        """Puts a plan in force for a shape. Backwards that are outstanding keep the plan of their forward."""
        self._in_force[key] = loaded
        self._by_number[loaded.number] = loaded
        self._recent[loaded.number] = loaded
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def forget(self) -> None:
        """Takes every plan out of force: the next call of each shape asks for a new one."""
        self._in_force.clear()

    def in_force(self, key: Key) -> Loaded:
        """The plan for a shape, which must have one."""
        return self._in_force[key]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Shapes for which a plan is in force."""
        return tuple(self._in_force)

    def forward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the first segment of the plan in force."""
        if compiled_autograd_enabled():
            raise CaptureError(
                "compiled autograd inlines the backward into another graph, past lowtide's plan. "
                "Train without torch._dynamo.config.compiled_autograd."
            )
        key = self.key_of(arguments)
        loaded = None if self.always_ask() else self._in_force.get(key)
        if loaded is None:
            loaded = self.plan_for(self, key, arguments)
        self.forwards += 1
        return loaded.segments[0](arguments)

    def backward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the second segment of the plan that the forward used."""
        token = arguments[self.token_at]
        loaded = getattr(token, "_lowtide_plan", None)
        if loaded is None:  # a hook replaced the tensor: its value is the truth, the attribute a shortcut
            loaded = self._by_number.get(int(token))
        if loaded is None:
            raise BackwardError(
                "the plan of this forward is gone: more than "
                f"{_RECENT} plans were exchanged before its backward. Run backward before exchanging so many plans."
            )
        self.backwards += 1
        return loaded.segments[1](arguments)
