"""Runs the active plan for each call of one captured graph.

A forward looks its plan up by shape; the token that it hands on tells its backward which plan that was, however
many plans were exchanged in between.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.contributions import SHARED, hand_over
from lowtide.device.engine_passes import (
    backward_is_retained,
    compiled_autograd_enabled,
    number_of_engine_pass,
    refuse_second_derivatives,
)
from lowtide.device.engines import Engines
from lowtide.errors import BackwardError, CaptureError
from lowtide.ir.graph import Graph
from lowtide.ir.interface import Interface, Token
from lowtide.ir.schedule import Schedule
from lowtide.runtime.codegen import Observer, Segment, generate
from lowtide.runtime.hard_budget import BackwardLease, Walled

Key = tuple[int | float | bool | str, ...]
_RECENT = 64  # plans kept alive for backwards whose token lost its attribute (a saved-tensor hook that clones)
_NUMBER = itertools.count(1)
_EXECUTOR = itertools.count(1)
_ONCE = (
    "second derivatives (create_graph=True and a backward through the gradient, in the training loop or in the model's "
    "own forward, by torch.autograd.grad) cannot be taken through a model that "
    "lowtide trains: its backward is generated code, which autograd does not record. Take that term with the plain "
    "model, lowtide.unfit(model), or fit only the submodules that need no double backward."
)


@dataclass(eq=False)
class Loaded:
    """A schedule as code.

    Arguments:
        segments: one function per segment of the graph.
        token: an integer tensor whose value is `number`; it also refers to this object.
        walled: where the segments' allocations are served; None where nothing is enforced.
        token_result: index of the token among the first segment's results; None where there is no backward.
    """

    number: int
    segments: tuple[Segment, ...]
    token: torch.Tensor
    walled: Walled | None = None
    token_result: int | None = None

    def run(
        self, segment: int, arguments: list[Any], lease: BackwardLease | None = None, slots: int = 0
    ) -> Sequence[Any]:
        """Runs a segment; inside the hard budget, if there is one.

        Arguments:
            lease: what the forward handed on to the backward, if it arrived.
            slots: how many of the arguments it handed on.
        """
        if self.walled is None:
            results: Sequence[Any] = self.segments[segment](arguments)
        else:
            results = self.walled.run(segment, self.segments[segment], arguments, lease, slots)
        if segment == 0 and self.token_result is not None:
            # A token of its own for every call: the budget holds for the caller's code until the last one dies.
            token = results[self.token_result]
            if token is self.token:
                token = self.token.detach()
                token._lowtide_plan = self
            if self.walled is not None:
                token._lowtide_lease = self.walled.lease()
            results = (*results[: self.token_result], token, *results[self.token_result + 1 :])
        return results


def load(
    graph: Graph,
    schedule: Schedule,
    interfaces: Sequence[Interface],
    held: Sequence[Any],
    hard_budget: Walled | None = None,
    engines: Engines | None = None,
    observer: Observer | None = None,
) -> Loaded:
    """Generates the code of a schedule.

    Arguments:
        hard_budget: where its allocations are served; None to leave them to torch.
        engines: carry out its copies; None where it has none.
        observer: is shown what every run reads and makes; None for none.
    """
    number = next(_NUMBER)
    token = torch.tensor([number], dtype=torch.int64)
    segments = generate(
        graph,
        schedule,
        interfaces,
        held,
        token,
        torch.empty(0),
        marked=hard_budget is not None,
        device="cpu" if hard_budget is None else hard_budget.hard_budget.arena.device,
        engines=engines,
        observer=observer,
    )
    tokens = [i for i, result in enumerate(interfaces[0].results) if isinstance(result, Token)]
    loaded = Loaded(number, segments, token, hard_budget, tokens[0] if tokens else None)
    token._lowtide_plan = loaded  # type: ignore[attr-defined]
    return loaded


class AbstractPlans:
    """What executors ask about their calls; a session answers.

    What stands here is true of one plan for calls of any shape, alone in memory.
    """

    lock: AbstractContextManager[Any]
    """Held while a segment is chosen and runs: threads take turns, since a plan speaks of one step at a time."""

    @property
    def asks_always(self) -> bool:
        """Whether `plan_for` is asked even where there is an active plan."""
        return False

    def key_of(self, executor: PlannedExecutor, arguments: Sequence[Any]) -> Key:  # noqa: ARG002
        """What distinguishes the shapes of a call."""
        return ()

    def plan_for(self, executor: PlannedExecutor, key: Key, arguments: Sequence[Any]) -> Loaded:
        """Installs and returns a plan where there is none for a key, or raises before anything has run."""
        raise NotImplementedError

    def settled(self, executor: PlannedExecutor, key: Key, loaded: Loaded, arguments: Sequence[Any]) -> Loaded:  # noqa: ARG002
        """The plan to use in place of the active one: around whatever tensors of earlier steps still hold."""
        return loaded

    def run_forward(self, executor: PlannedExecutor, key: Key, loaded: Loaded, arguments: list[Any]) -> Sequence[Any]:  # noqa: ARG002
        """Runs the first segment of a plan."""
        return loaded.run(0, arguments)


@dataclass(eq=False)
class PlannedExecutor:
    """Stands in for one captured graph.

    Arguments:
        plans: is asked for the plan of every call.
        token_at: index of the token among the backward's arguments.
        shares: inputs whose gradient is handed to autograd in several contributions; see `Joint.shares`.
        undivided: those of them whose gradient is one sum all the same, to which nothing else may be added.
        number: its own in this process, for good.
        latest_key: what distinguishes the shapes of the latest forward.
        forwards, backwards: how often this really ran: the proof that a step did not go past the plan.
    """

    plans: AbstractPlans
    token_at: int
    shares: tuple[tuple[int, tuple[int, ...]], ...] = ()
    undivided: frozenset[int] = frozenset()
    latest_key: Key = ()
    number: int = field(default_factory=_EXECUTOR.__next__)
    forwards: int = 0
    backwards: int = 0
    _pass: int = -1  # number of the latest pass of autograd's engine that ran a backward
    _active_plans: dict[Key, Loaded] = field(default_factory=dict)
    _by_number: weakref.WeakValueDictionary[int, Loaded] = field(default_factory=weakref.WeakValueDictionary)
    _recent: OrderedDict[int, Loaded] = field(default_factory=OrderedDict)

    def install(self, key: Key, loaded: Loaded) -> None:
        """Makes a plan the active one for a shape. Backwards that are outstanding keep the plan of their forward."""
        self._active_plans[key] = loaded
        self.remember(loaded)

    def remember(self, loaded: Loaded) -> None:
        """Keeps a plan for the backwards of forwards that run by it, whether or not it is active."""
        self._by_number[loaded.number] = loaded
        self._recent[loaded.number] = loaded
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def remove(self, key: Key) -> None:
        """Takes the plan for a shape out of force. Backwards that are outstanding keep the plan of their forward."""
        self._active_plans.pop(key, None)

    def forget(self) -> None:
        """Takes every plan out of force: the next call of each shape asks for a new one."""
        self._active_plans.clear()

    def active(self, key: Key) -> Loaded:
        """The plan for a shape, which must have one."""
        return self._active_plans[key]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Shapes for which a plan is active."""
        return tuple(self._active_plans)

    def forward(self, arguments: list[Any]) -> Sequence[Any]:
        """Runs the first segment of the active plan."""
        if compiled_autograd_enabled():
            raise CaptureError(
                "compiled autograd inlines the backward into another graph, past lowtide's plan. "
                "Train without torch._dynamo.config.compiled_autograd."
            )
        plans = self.plans
        with plans.lock:
            key = self.latest_key = plans.key_of(self, arguments)
            loaded = None if plans.asks_always else self._active_plans.get(key)
            if loaded is None:
                loaded = plans.plan_for(self, key, arguments)
                # The step may have turned out to be one of several graphs.
                key = self.latest_key = plans.key_of(self, arguments)
            loaded = plans.settled(self, key, loaded, arguments)
            self.forwards += 1
            return plans.run_forward(self, key, loaded, arguments)

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
        if backward_is_retained():
            refuse_second_derivatives(BackwardError(_ONCE), functools.partial(_close, weakref.ref(token)))
        before, self._pass = self._pass, number_of_engine_pass()
        if self.undivided and before == self._pass != -1:
            raise BackwardError(SHARED)
        with self.plans.lock:
            self.backwards += 1
            results = loaded.run(1, arguments, getattr(token, "_lowtide_lease", None), self.token_at)
        return self._divided(results) if self.shares else results

    def _divided(self, results: Sequence[Any]) -> Sequence[Any]:
        """One gradient per input; those of inputs with several uses bring further contributions with them."""
        count = len(results) - sum(len(further) for _, further in self.shares)
        gradients = list(results[:count])
        for index, further in self.shares:
            there = [results[k] for k in (index, *further) if results[k] is not None]
            gradients[index] = hand_over(index, there, alone=index in self.undivided)
        return gradients


def _close(token: weakref.ref[Any]) -> None:
    """Ends the window of a step that cannot go on: what autograd recorded of it may be a cycle that nobody collects."""
    found = token()
    if found is not None:
        found._lowtide_lease = None
