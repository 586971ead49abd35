"""One module captured once, and run with any choice of implementations by lowtide's own executor.

Units: `_B` bytes.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.utils._pytree import tree_leaves

from lowtide.capture.aot import make_backend
from lowtide.capture.captured import Captured, Specialised
from lowtide.capture.captured_call import AbstractSteps
from lowtide.capture.exchange import interfaces_of
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.in_place import plain_candidates
from lowtide.ir.interface import Interface, filled
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.numerics import Numerics
from lowtide.ir.schedule import Schedule
from lowtide.ops.catalogue import enlarge
from lowtide.planners.implementations.choice import Choice, choose
from lowtide.runtime.codegen import carried_into
from lowtide.runtime.executor import AbstractPlans, Loaded, PlannedExecutor, load
from lowtide.runtime.statements import split, statements_of
from lowtide.session.dynamo_call import compiled_call, run_loudly

_UNLIMITED_B = 2**50


@dataclass(frozen=True)
class Seen:
    """What one step left behind: outputs, gradients, buffers, the generator, and what the forward handed on.

    Arguments:
        saved_B: per value of no plain program that went from forward to backward, the bytes of its storage.
    """

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    buffers: list[torch.Tensor]
    generator: torch.Tensor
    saved_B: dict[int, int] = field(default_factory=dict)


class Forced(AbstractPlans, AbstractSteps):
    """A module whose implementations are chosen by hand, everything kept.

    Arguments:
        module: in training mode; its state is the same before every step.
        inputs: of every call.
        numerics: up to which level implementations are offered.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[Any], numerics: Numerics = Numerics.LOSSY) -> None:
        self.module, self.inputs, self.numerics = module, inputs, numerics
        self.state = copy.deepcopy(module.state_dict())
        self._specialised: Specialised | None = None
        self._executor: PlannedExecutor | None = None
        self._captured: Captured | None = None
        self._saved_B: dict[int, int] = {}
        self.lock, self.arrivals = threading.RLock(), {}
        torch._dynamo.reset()
        self._call = compiled_call(module, make_backend(self._executor_for, steps=self), False)
        self.plainly = self._step(module)
        self.first = self._step(lambda *args: run_loudly(self._call, args, {}))

    @property
    def graph(self) -> Graph:
        """With every implementation."""
        assert self._specialised is not None
        return self._specialised.graph

    @property
    def held(self) -> list[Any]:
        """Arguments of its operators without a text form."""
        assert self._specialised is not None
        return self._specialised.held

    @property
    def captured(self) -> int:
        """How many values the program has."""
        assert self._specialised is not None
        return len(self._specialised.extraction.values)

    def run(self, choice: Choice, in_place: bool = False) -> Seen:
        """One step with the chosen options, and with recipes in place wherever they may stand if that is wanted."""
        graph = choose(self.graph, choice)
        if in_place:
            graph = replace(graph, program=overwriting(graph))
        assert self._executor is not None
        self._executor.install((), self._loaded(graph, keep_all_schedule(graph)))
        return self._step(lambda *args: run_loudly(self._call, args, {}))

    def _executor_for(self, captured: Captured) -> PlannedExecutor:
        assert captured.ended is None, "an example is one graph, captured again where gradients come otherwise"
        self._captured = captured
        token_at = captured.slots.token if captured.joint.trains else -1
        self._executor = PlannedExecutor(self, token_at)
        return self._executor

    def plan_for(self, executor: PlannedExecutor, key: Any, arguments: Sequence[Any]) -> Loaded:
        """The program as it is, with what may be chosen."""
        assert self._captured is not None
        specialised = self._captured.specialise(arguments)
        specialised.graph = enlarge(specialised.graph, self.numerics)
        self._specialised = specialised
        loaded = self._loaded(specialised.graph, keep_all_schedule(specialised.graph))
        executor.install(key, loaded)
        return loaded

    def _loaded(self, graph: Graph, schedule: Schedule) -> Loaded:
        assert self._specialised is not None
        check(graph, schedule, _UNLIMITED_B)
        interfaces = interfaces_of(self._specialised)
        loaded = load(graph, schedule, interfaces, self._specialised.held)
        if len(loaded.segments) > 1:
            carried = carried_into(graph, statements_of(graph, split(schedule, 2)[1]), 1)
            forward = filled(interfaces, carried)[0]
            loaded.segments = (self._weighing(loaded.segments[0], forward), *loaded.segments[1:])
        return loaded

    def _weighing(self, code: Any, forward: Interface) -> Any:
        """The forward's code, and a look at what it hands on."""

        def weighed(arguments: list[Any]) -> tuple[Any, ...]:
            results = code(arguments)
            for index, slot in forward.slots.items():
                if slot.value is not None and slot.value >= self.captured and results[index].numel():
                    self._saved_B[slot.value] = results[index].untyped_storage().nbytes()
            return results

        return weighed

    def _step(self, call: Callable[..., Any]) -> Seen:
        self._saved_B = {}
        with torch.no_grad():
            for name, tensor in self.module.state_dict(keep_vars=True).items():
                tensor.copy_(self.state[name])
        return dataclasses.replace(step(self.module, self.inputs, call), saved_B=dict(self._saved_B))


def step(module: nn.Module, inputs: Sequence[Any], call: Callable[..., Any]) -> Seen:
    """One forward and backward.

    Arguments:
        call: what runs in the place of the module's own call.
    """
    given = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    for tensor in (*module.parameters(), *given):
        tensor.grad = None
    torch.manual_seed(11)
    outputs = [o for o in tree_leaves(call(*inputs)) if isinstance(o, torch.Tensor)]
    differentiable = [o for o in outputs if o.requires_grad]
    torch.autograd.backward(differentiable, [_cotangent(i, o) for i, o in enumerate(differentiable)])
    return Seen(
        [o.detach().clone() for o in outputs],
        [None if t.grad is None else t.grad for t in (*module.parameters(), *given)],
        [b.clone() for b in module.buffers()],
        torch.get_rng_state(),
    )


def overwriting(graph: Graph) -> tuple[int, ...]:
    """The program with recipes in place wherever what they overwrite is not read again."""
    candidate_of = {plain: candidate for candidate, plain in plain_candidates(graph).items()}
    program = list(graph.program)
    for place, recipe in enumerate(program):
        candidate = candidate_of.get(recipe)
        if candidate is None:
            continue
        lost = graph.recipes[candidate].consumes[0].value
        if all(lost not in graph.recipes[r].read_values for r in program[place + 1 :]):
            program[place] = candidate
    return tuple(program)


def _cotangent(number: int, output: torch.Tensor) -> torch.Tensor:
    """A gradient for an output: the same for every dtype, up to rounding."""
    generator = torch.Generator().manual_seed(17 + number)
    return torch.randn(output.shape, generator=generator).to(output.dtype)
