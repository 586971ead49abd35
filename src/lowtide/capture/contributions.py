"""Gradients of a captured graph divided into what each use of an input contributes; see `device/contributions.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from lowtide.capture.joint import Joint
from lowtide.device.contributions import is_accumulation

_ADDITION, _EMBEDDING = torch.ops.aten.add.Tensor, torch.ops.aten.embedding_dense_backward.default


def edges_of(joint: Joint, traces: Sequence[Sequence[int]]) -> dict[int, int] | None:
    """Along how many edges gradients come to each input that needs one; None where no trace tells.

    Arguments:
        traces: per trace of a backward, the edges that lead to each input that needs a gradient, in order.
    """
    needed = _needed(joint)
    edges = next((counts for counts in reversed(traces) if len(counts) == len(needed)), None)
    return None if edges is None else dict(zip(needed, edges, strict=True))


def _needed(joint: Joint) -> list[int]:
    described = (joint.module.graph.output_node().meta.get("desc") or [])[len(joint.forward_outputs) :]
    return [i for i, descriptor in enumerate(described) if descriptor is not None]


def divide_gradients(joint: Joint, edges: Mapping[int, int] | None, *, several: bool) -> Joint:
    """Takes sums over the uses of an input out of the backward, where other code may use the input as well.

    A parameter that a graph uses more than twice keeps its sum if the model is one graph: else an unrolled network
    would hold the gradient of each of its steps. So does a weight that is embedding and last layer, whose gradient as
    an embedding need then not exist whole (`ops/tied_embedding.py`). What other code adds is refused when it happens.

    Arguments:
        joint: as traced; its module is changed.
        edges: per input that needs a gradient, along how many it comes; None if that is not known.
        several: whether the model has other graphs.

    Returns: the joint graph with `shares`, and with further gradients behind those of the inputs.
    """
    shares: list[tuple[int, tuple[int, ...]]] = []
    undivided: list[int] = []
    gradients = list(joint.backward_outputs)
    count = len(gradients)
    for index in _needed(joint):
        if joint.primals[index] in joint.mutated or index >= count:
            continue
        parts = contributions_to(gradients[index], None if edges is None else edges[index])
        if len(parts) < 2:
            continue
        if edges is None or not (several or index not in joint.statics or _are_few(parts)):
            undivided.append(index)
            continue
        gradients[index] = parts[0]
        shares.append((index, tuple(range(len(gradients), len(gradients) + len(parts) - 1))))
        gradients += parts[1:]
    if shares:
        _replace_gradients(joint, gradients)
    return replace(joint, backward_outputs=gradients, shares=tuple(shares), undivided=tuple(undivided))


def contributions_to(gradient: Any, edges: int | None) -> list[fx.Node]:
    """What autograd's engine added up to a gradient, in order.

    Arguments:
        edges: along which contributions came; None if that is not known, for as many as there may be.
    """
    further: list[fx.Node] = []
    node = gradient
    while (edges is None or len(further) < edges - 1) and _is_sum(node):
        node, last = node.args
        further.append(last)
    return [node, *reversed(further)] if isinstance(node, fx.Node) else []


def _are_few(parts: Sequence[fx.Node]) -> bool:
    """Whether contributions to a parameter's gradient are held one by one for what their sum may save."""
    return len(parts) == 2 and all(p.target is not _EMBEDDING for p in parts)


def _is_sum(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.target is not _ADDITION or not is_accumulation(node.meta):
        return False
    parts = [a for a in node.args if isinstance(a, fx.Node)]
    return len(node.args) == len(parts) == 2 and all(p.meta["val"].layout is torch.strided for p in parts)


def _replace_gradients(joint: Joint, gradients: Sequence[Any]) -> None:
    """Makes the module return other gradients, and takes out the sums that nobody reads any more."""
    graph = joint.module.graph
    output = graph.output_node()
    before = [g for g in joint.backward_outputs if isinstance(g, fx.Node)]
    output.args = ((*joint.forward_outputs, *gradients),)
    while before:
        node = before.pop()
        if _is_sum(node) and not node.users:
            before += [a for a in node.args if isinstance(a, fx.Node)]
            graph.erase_node(node)
