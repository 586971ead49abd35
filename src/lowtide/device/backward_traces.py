"""What AOTAutograd does while it traces a backward: which gradients it starts from, and along which edges they flow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import fx

from lowtide.device.arrivals import Arrivals, GradientLayout
from lowtide.device.strides import hint_of, order_of

_TRACER = "inner_fn"  # of AOTAutograd's `create_joint`
_LAID_OUT = torch.ops.aten.new_empty_strided.default


@dataclass(eq=False)
class BackwardTraces:
    """Notes of the traces of one capture.

    Arguments:
        edges: per trace, along how many edges gradients come to each input that needs one.
        begun_from: of the latest trace, the tangents (by number) that it starts from.
    """

    edges: list[list[int]] = field(default_factory=list)
    begun_from: frozenset[int] = frozenset()


@contextlib.contextmanager
def backward_traces(arrivals: Arrivals | None, *, scalars_alone: bool) -> Iterator[BackwardTraces]:
    """Inside, AOTAutograd traces backwards for gradients with a given arrival.

    Arguments:
        arrivals: how; None where that is not known and has to be guessed.
        scalars_alone: whether the guess is then that an output without dimensions is the loss, and the others have no
            gradient.
    """
    plain, notes = torch.autograd.grad, BackwardTraces()

    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_name == _TRACER and grad_outputs is not None and not _is_inside(frame):
            outputs, grad_outputs = _begun_from(outputs, grad_outputs, list(frame.f_locals["tangents"]))
            notes.edges.append(_edges(outputs, inputs))
        return plain(outputs, inputs, grad_outputs, *args, **kwargs)

    def _begun_from(
        outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], tangents: Sequence[Any]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        numbers = [next(i for i, t in enumerate(tangents) if t is g) for g in gradients]
        if arrivals is not None:
            wanted = [i for i, number in enumerate(numbers) if arrivals[number] is not None]
        else:
            wanted = [i for i, output in enumerate(outputs) if scalars_alone and output.dim() == 0]
            wanted = wanted or list(range(len(outputs)))
        notes.begun_from = frozenset(numbers[i] for i in wanted)
        laid_out = [gradients[i] for i in wanted]
        for place, i in enumerate(wanted):
            layout = _likely(outputs[i]) if arrivals is None else arrivals[numbers[i]]
            if layout is not None:
                gradient = gradients[i]
                laid_out[place] = gradient.new_empty_strided(gradient.shape, layout.strides_of(gradient.shape))
        return [outputs[i] for i in wanted], laid_out

    torch.autograd.grad = grad
    try:
        yield notes
    finally:
        torch.autograd.grad = plain


def _is_inside(frame: FrameType) -> bool:
    """Whether a trace is part of another: of the backward of a branch of `torch.cond`, say."""
    outer = frame.f_back
    while outer is not None and outer.f_code is not frame.f_code:
        outer = outer.f_back
    return outer is not None


def _likely(output: torch.Tensor) -> GradientLayout | None:
    """How the gradient of an output probably lies: in the order of the output's dimensions, without holes."""
    shape, strides = ([hint_of(n) for n in numbers] for numbers in (output.shape, output.stride()))
    if None in shape or None in strides or 0 in strides:
        return None
    return GradientLayout(order_of(shape, strides))  # type: ignore[arg-type]


def take_layouts(module: fx.GraphModule) -> None:
    """Gives the tangents of a joint graph that was traced as above the layouts for which it was traced."""
    for tangent in module.graph.find_nodes(op="placeholder"):
        for node in [n for n in tangent.users if n.target is _LAID_OUT and n.args[0] is tangent]:
            if tangent.name.startswith("tangents"):
                tangent.meta["val"] = node.meta["val"]
                node.replace_all_uses_with(tangent)
                module.graph.erase_node(node)


def _edges(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[int]:
    """Per input, how many edges of the autograd graph behind some outputs lead to it. O(graph)."""
    leaves = {id(t): i for i, t in enumerate(inputs) if t.grad_fn is None}
    nodes = {(t.grad_fn, t.output_nr): i for i, t in enumerate(inputs) if t.grad_fn is not None}
    counts = [0] * len(inputs)
    seen: set[Any] = set()
    pending: list[tuple[Any, int]] = []
    for output in outputs:
        if id(output) in leaves:
            counts[leaves[id(output)]] += 1
        elif output.grad_fn is not None:
            pending.append((output.grad_fn, output.output_nr))
    while pending:
        node, number = pending.pop()
        index = nodes.get((node, number))
        variable = getattr(node, "variable", None) if not node.next_functions else None
        if index is None and variable is not None:
            index = leaves.get(id(variable))
        if index is not None:
            counts[index] += 1
        if node not in seen:
            seen.add(node)
            pending += [edge for edge in node.next_functions if edge[0] is not None]
    return counts
