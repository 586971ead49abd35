"""Whole training steps from captured graphs: SGD with momentum, one update per parameter behind its gradient.

What `lowtide.TrainStep` captures, made of a graph that has no updates, so that deep and wide networks need no capture:
gradients stay inside, and each is consumed by its update as soon as it is complete and nothing reads the weight any
more. Needs no torch.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec.structs import replace

from lowtide.ir.call import Read
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Takeover, Value
from lowtide.ir.machine import Machine

OP = "lowtide.update.sgd"
_TRAFFIC = 8  # times a weight's bytes: scale the momentum, add the gradient to it, add it to the weight
_LIVES: dict[str, Any] = {"arrives": 0, "persistent": True, "movable": True}


class NoWeight(LookupError):
    """A gradient belongs to no persistent value."""


def with_momentum(graph: Graph, machine: Machine) -> Graph:
    """The graph with its updates.

    Arguments:
        graph: of one part with a forward and a backward; its gradients leave.
        machine: whose roofline gives the seconds of an update.

    Raises:
        NoWeight: if a gradient has no weight.

    O(graph).
    """
    last = len(graph.segments) - 1
    weights = _weights(graph)
    values = [_inside(v, weights) for v in graph.values]
    for v in weights.values():
        values[v] = replace(values[v], role=Role.PARAMETER, movable=True)
    recipes, program = list(graph.recipes), list[int]()
    behind = _places(graph, weights)
    for place, r in enumerate(graph.program):
        program.append(r)
        for gradient in behind[place]:
            weight = values[weights[gradient]]
            momentum = Value(
                len(values), f"{weight.name}.momentum", weight.size_B, Role.STATE, weight.geometry, **_LIVES
            )
            values.append(momentum)
            made = []
            for old in (weight, momentum):
                fresh = Value(
                    len(values), f"{old.name}'", old.size_B, old.role, old.geometry, leaves=last, replaces=old.id
                )
                values.append(fresh)
                made.append(fresh.id)
            program.append(len(recipes))
            recipes.append(
                _update(len(recipes), (weight.id, momentum.id), gradient, made, weight.size_B, last, machine)
            )
    return replace(graph, values=tuple(values), recipes=tuple(recipes), program=tuple(program))


def _update(
    number: int, held: tuple[int, int], gradient: int, made: list[int], size_B: int, segment: int, machine: Machine
) -> Recipe:
    return Recipe(
        number,
        OP,
        tuple(made),
        tuple(Read(v) for v in (*held, gradient)),
        segment=segment,
        consumes=tuple(Takeover(v, k) for k, v in enumerate(held)),
        time_s=max(machine.launch_s, _TRAFFIC * size_B / machine.traffic_Bps),
        trace=MiniTrace((), (None,) * len(made)),
    )


def _inside(value: Value, weights: dict[int, int]) -> Value:
    return replace(value, role=Role.ACTIVATION, leaves=None) if value.id in weights else value


def _places(graph: Graph, weights: dict[int, int]) -> dict[int, list[int]]:
    """Per place of the program the gradients whose updates run behind it."""
    places: dict[int, int] = {}
    ready: dict[int, int] = {}
    for place, r in enumerate(graph.program):
        for v in graph.recipes[r].read_values:
            places[v] = place
        for v in graph.recipes[r].outputs:
            ready[v] = place
    found: dict[int, list[int]] = defaultdict(list)
    for gradient, weight in weights.items():
        found[max(ready[gradient], places.get(weight, 0), places.get(gradient, 0))].append(gradient)
    return found


def _weights(graph: Graph) -> dict[int, int]:
    """Per gradient the persistent value of its size that belongs to the module that makes it."""
    makers = {v: graph.recipes[r] for r in graph.program for v in graph.recipes[r].outputs}
    free = {v.id: v for v in graph.values if v.persistent and v.role in (Role.PARAMETER, Role.BUFFER)}
    owned: dict[tuple[str, int], list[int]] = defaultdict(list)
    for v in free.values():
        if v.readable_through is None:
            owned[v.name.rpartition(".")[0], v.size_B].append(v.id)
    found: dict[int, int] = {}
    gradients = [v for v in graph.values if v.role is Role.GRADIENT]
    for gradient in gradients:
        own = owned[makers[gradient.id].origin.module, gradient.size_B]
        if own:
            found[gradient.id] = own.pop(0)
    for gradient in gradients:  # sums of several modules' gradients, say of an embedding that is the head as well
        if gradient.id not in found:
            rest = [v for own in owned.values() for v in own if free[v].size_B == gradient.size_B]
            if not rest:
                raise NoWeight(f"{graph.name}: no weight for gradient {gradient.name} of {gradient.size_B} B")
            found[gradient.id] = rest[0]
            owned[free[rest[0]].name.rpartition(".")[0], gradient.size_B].remove(rest[0])
    return found
