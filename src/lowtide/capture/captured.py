"""One captured graph, and the same with every size a number."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import fx

from lowtide.capture.extract import Extraction
from lowtide.capture.joint import Joint
from lowtide.capture.slots import Slots
from lowtide.capture.symbols import ShapeKey, Symbols, describe_shapes, shape_key
from lowtide.capture.whole_step import WholeStep
from lowtide.device.arrivals import Arrivals
from lowtide.ir.fidelity import Fidelity
from lowtide.ir.graph import Graph, Role
from lowtide.ir.interface import crossing
from lowtide.ir.plan import GraphBreak

_TRAINING_NORM = "aten._native_batch_norm_legit_functional.default"


class Executor(Protocol):
    """What runs in place of a captured graph. Argument lists are boxed: the callee empties them.

    Arguments:
        latest_key: what the latest forward was run as.
    """

    @property
    def latest_key(self) -> Any: ...

    def forward(self, arguments: list[Any]) -> Sequence[Any]: ...

    def backward(self, arguments: list[Any]) -> Sequence[Any]: ...


@dataclass(eq=False)
class Captured:
    """One captured graph: how to specialise it, and how it exchanges values with its caller.

    Arguments:
        joint: the graph; nodes carry fake values with possibly symbolic sizes.
        slots: what passes from forward to backward; empty for inference.
        ended: the break at which the graph ended, if the model goes on in another.
        positions: per tangent, its place among the gradients of the forward's results; None where that is not known.
        arrivals: how the gradients come for which the backward was captured; None where they are laid out on arrival.
        program: the same object for every capture of one graph.
        kept_casts: inputs of which eager's autocast makes one cast for all uses, in other calls too.
        shared_results: of the forward's results, those that share memory and have gradients of their own.
        fidelity: what is known of how its results compare with those of the same code without lowtide.
    """

    joint: Joint
    slots: Slots
    ended: GraphBreak | None = None
    positions: tuple[int, ...] | None = None
    arrivals: Arrivals | None = None
    program: object = field(default_factory=object)
    kept_casts: frozenset[int] = frozenset()
    shared_results: frozenset[int] = frozenset()
    fidelity: Fidelity = field(default_factory=Fidelity)

    @cached_property
    def _symbolic(self) -> tuple[int, ...]:
        return tuple(i for i, p in enumerate(self.joint.primals) if isinstance(p.meta.get("val"), torch.SymInt))

    @cached_property
    def unchanged(self) -> dict[int, int]:
        """Per result of the forward that replaces an argument's content, that argument."""
        position = {p: i for i, p in enumerate(self.joint.primals)}
        outputs = self.joint.forward_outputs
        return {i: position[p] for p, new in self.joint.mutated.items() for i, o in enumerate(outputs) if o is new}

    @cached_property
    def token_result(self) -> int:
        """Index of the token among the forward's results."""
        return len(self.joint.forward_outputs) + self.slots.token - len(self.slots.numbers)

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """Arguments that the forward's caller overwrites behind it, and from whose content gradients are computed."""
        joint, late = self.joint, self.joint.late()
        return frozenset(i for i, p in enumerate(joint.primals) if p in joint.mutated and _feeds(p, late))

    @property
    def expects_gradients_of_tensors(self) -> bool:
        """Whether gradients come of results that are no single number."""
        return any(t.users and t.meta["val"].ndim > 0 for t in self.joint.tangents)

    @property
    def moves(self) -> list[str]:
        """Names of what the forward overwrites, and of the generator that it draws from."""
        joint = self.joint
        places = [i for i, primal in enumerate(joint.primals) if primal in joint.mutated]
        return [joint.names.get(i, joint.primals[i].name) for i in places] + ["torch's random generator"] * bool(
            self.slots.random
        )

    @property
    def saves(self) -> bool:
        """Whether eager is known to save anything for the backward."""
        return self._last_saved >= 0

    @property
    def saves_last(self) -> bool:
        """Whether eager is known to overwrite the arguments before it saves the last tensor for the backward."""
        return all(self._made(new) <= self._last_saved for new in self.joint.mutated.values())

    @cached_property
    def _last_saved(self) -> int:
        """Place of the last result of the forward that the backward reads: saved then, or later. -1 for none."""
        end = max((self._made(o) for o in self.joint.forward_outputs), default=-1)  # the backward's own come behind it
        late, places = self.joint.late(), self._places
        backward = {n for n in places if n.op != "output" and (n in late or self._made(n) > end)}
        read = (self._made(n) for n in places if n not in backward and not backward.isdisjoint(n.users))
        return max(read, default=-1)

    @cached_property
    def _places(self) -> dict[fx.Node, int]:
        return {node: i for i, node in enumerate(self.joint.module.graph.nodes)}

    def _made(self, node: Any) -> int:
        """Place of the operator that made a value; -1 where there is none."""
        while isinstance(node, fx.Node) and node.target is operator.getitem:
            node = node.args[0]
        return self._places.get(node, -1)

    def key(self, arguments: Sequence[Any]) -> ShapeKey:
        """What distinguishes this call's shapes from others of the same graph."""
        return shape_key(self._symbolic, arguments)

    def specialise(self, arguments: Sequence[Any] | None) -> Specialised:
        """The graph for the sizes of one call; with None, for the sizes it was traced with."""
        symbols = Symbols(self.joint.primals, arguments)
        extraction = Extraction(self.joint, symbols)
        graph = extraction.run()
        shapes = describe_shapes(self.joint.primals, self.joint.names, symbols)
        return Specialised(self, extraction, symbols, graph, shapes)


@dataclass(eq=False)
class Specialised:
    """A captured graph with every size a number: the IR graph, and what maps it to the caller's arguments.

    Arguments:
        graph: before profiling.
        shapes: name and shape of each tensor that the caller gives.
        whole: the same as one segment with the optimizer's updates, where it runs so.
    """

    captured: Captured
    extraction: Extraction
    symbols: Symbols
    graph: Graph
    shapes: tuple[tuple[str, str], ...]
    whole: WholeStep | None = None

    @property
    def held(self) -> list[Any]:
        """Arguments without a text form, by the index that `Held` names."""
        return self.extraction.held if self.whole is None else self.whole.held

    def outside_arena(self, graph: Graph) -> list[int]:
        """Values of a graph with more implementations that some plan may hand to the backward, and without a slot."""
        value_of = self.extraction.value_of
        device_resident = {value_of[n] for n in self.captured.slots.tensors if n in value_of}
        device_resident |= {v for v, _ in self.extraction.constants}
        return [
            v
            for v in sorted(crossing(graph))
            if v not in device_resident and graph.values[v].role is not Role.GENERATOR
        ]


def _feeds(primal: fx.Node, late: set[fx.Node]) -> bool:
    """Whether the backward reads an input, or something computed from it."""
    pending, seen = [primal], {primal}
    while pending:
        node = pending.pop()
        for user in node.users:
            if user in late:
                return True
            # Statistics of a batch norm in training are updated besides what it computes.
            if user in seen or (str(user.target) == _TRAINING_NORM and node in user.args[3:5] and user.args[5] is True):
                continue
            seen.add(user)
            pending.append(user)
    return False
