"""The graphs of one step, as it calls them, and their union on one timeline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lowtide.capture.captured import Specialised
from lowtide.capture.exchange import interfaces_of
from lowtide.capture.whole_step import WholeStep
from lowtide.device.storage import Identity, identity_of
from lowtide.device.versions import version_of
from lowtide.errors import CaptureError
from lowtide.ir.bundle import Bundle, Part, merge
from lowtide.ir.call import Read
from lowtide.ir.graph import Graph
from lowtide.ir.interface import Interface
from lowtide.runtime.executor import Key, PlannedExecutor


@dataclass(eq=False)
class Call:
    """One captured graph as one step calls it.

    Arguments:
        executor, key: where the plan will be installed.
        specialised: the graph for this call's shapes.
        inputs: per argument, the identity of its storage (None for numbers).
        outputs: per result, the identity of the storage that it came in.
        contents: parameters and buffers by value, until the graph has been given its implementations.
    """

    executor: PlannedExecutor
    key: Key
    specialised: Specialised
    inputs: tuple[Identity | None, ...]
    outputs: tuple[Identity | None, ...] = ()
    contents: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The interfaces by which the graph exchanges values with its caller."""
        return interfaces_of(self.specialised)

    def become(self, whole: WholeStep, states: Iterable[Identity | None]) -> None:
        """Makes the call one of a whole step.

        Arguments:
            states: identities of what it is given besides.
        """
        self.specialised = replace(self.specialised, whole=whole, graph=whole.graph)
        self.inputs = (*self.inputs, *states)

    def tangent_of(self, result: int) -> int | None:
        """The value as which the gradient of a result of the forward arrives; None if none is there or known."""
        captured, value_of = self.specialised.captured, self.specialised.extraction.value_of
        if captured.positions is None or result not in captured.positions:
            return None
        return value_of.get(captured.joint.tangents[captured.positions.index(result)])


@contextlib.contextmanager
def unchanged_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Gives tensors back the content they had, where code between the graphs overwrites them meanwhile.

    Buffers are copied (batch norm in a part that is not captured moves its statistics); parameters are too large for
    that, and only watched.

    Arguments:
        tensors: parameters and buffers of the model.

    Raises:
        CaptureError: if a parameter was overwritten.
    """
    kept = list(tensors)
    copies = {i: t.detach().clone() for i, t in enumerate(kept) if not isinstance(t, torch.nn.Parameter)}
    versions = [version_of(t) for t in kept]
    try:
        yield
    finally:
        for index, copy in copies.items():  # batch norm counts no version, and giving back must not count one
            kept[index].data.copy_(copy)
    if any(version_of(t) != v for i, (t, v) in enumerate(zip(kept, versions, strict=True)) if i not in copies):
        raise CaptureError(
            "code between the captured graphs overwrites a parameter during the forward, so the graphs cannot be found "
            "by a call that computes nothing. Mend the graph break (TORCH_LOGS=graph_breaks shows it)."
        )


def call_of(executor: PlannedExecutor, key: Key, specialised: Specialised, arguments: Sequence[Any]) -> Call:
    """Describes a call before its arguments are given away."""
    joint, value_of = specialised.captured.joint, specialised.extraction.value_of
    contents = {value_of[joint.primals[i]]: arguments[i] for i in joint.statics if joint.primals[i] in value_of}
    return Call(executor, key, specialised, tuple(identity_of(a) for a in arguments), contents=contents)


def bundle_of(calls: Sequence[Call], graphs: Sequence[Graph]) -> Bundle:
    """All graphs of a step on one timeline; bytes that several of them see are counted once.

    Arguments:
        graphs: per call, its profiled graph.
    """
    seen: set[Identity] = set()
    produced: dict[Identity, tuple[int, int]] = {}  # storage -> (call, result)
    shared: list[set[int]] = [set() for _ in calls]
    released: list[set[int]] = [set() for _ in calls]
    handed: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in calls]
    for index, call in enumerate(calls):
        interfaces = call.interfaces
        for position, value in enumerate(interfaces[0].arguments):
            where = call.inputs[position] if position < len(call.inputs) else None
            if value is None or where is None:
                continue
            if where in seen or where in produced:
                shared[index].add(value)
            seen.add(where)
            if where in produced and len(interfaces) > 1 and position < len(interfaces[1].results):
                gradient = interfaces[1].results[position]
                if isinstance(gradient, Read):
                    further = dict(call.specialised.captured.joint.shares).get(position, ())
                    shares = (interfaces[1].results[k] for k in further)
                    released[index] |= {gradient.value, *(r.value for r in shares if isinstance(r, Read))}
                    # Autograd adds further contributions to the first one, in its bytes.
                    part, result = produced[where]
                    arrives = calls[part].tangent_of(result)
                    if arrives is not None:
                        handed[index].append((gradient.value, (part, arrives)))
        produced |= {where: (index, k) for k, where in enumerate(call.outputs) if where is not None}
    parts = [
        Part(g, frozenset(s), frozenset(r), tuple(h))
        for g, s, r, h in zip(graphs, shared, released, handed, strict=True)
    ]
    return merge(parts)


def outside_B(tensors: Iterable[torch.Tensor], calls: Sequence[Call], device: str) -> int:
    """Bytes of the given tensors' storages on a device that no call is given. Shared storages count once."""
    given = {where for call in calls for where in call.inputs if where is not None}
    sizes: dict[Identity, int] = {}
    for tensor in tensors:
        where = identity_of(tensor)
        if where is not None and where not in given and tensor.device.type == device:
            sizes[where] = tensor.untyped_storage().nbytes()
    return sum(sizes.values())
