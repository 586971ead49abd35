"""The fixed vector of slots between forward and backward, and the honest modules that AOTAutograd sees.

AOTAutograd is told that the forward hands every slot to the backward, always. Which slots are really filled is
decided call by call, by the active plan: the others carry one shared empty tensor. So plans are exchanged
between steps without compiling anything again. Values that only another implementation makes have no node, so they
travel in slots that the plan leaves empty, and some are spare. The last slot is a token, one integer that names the
plan of the forward to its backward.

The modules made here keep everything. They are what AOTAutograd inspects; lowtide runs its own code instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowtide.capture.extract import slot_nodes
from lowtide.capture.joint import Joint, ancestors, is_number, is_random
from lowtide.device.fake_tensors import detect_fake_mode

GENERATOR_SLOT_B = 16  # only the type matters to AOTAutograd


@dataclass(frozen=True)
class Slots:
    """What passes from forward to backward, in order: numbers, tensors, generator states, spare tensors, token.

    Arguments:
        numbers: symbolic sizes (AOTAutograd passes them first in the backward, last in the forward's results).
        tensors: base nodes that some plan may save.
        random: forward calls whose generator state some plan may save.
        spares: for values that no node has: those of other implementations.
    """

    numbers: tuple[fx.Node, ...]
    tensors: tuple[fx.Node, ...]
    random: tuple[fx.Node, ...]
    spares: int = 0

    @property
    def token(self) -> int:
        """Index of the token among the backward's arguments."""
        return len(self.numbers) + len(self.tensors) + len(self.random) + self.spares


def slots_of(joint: Joint, spares: int = 0) -> Slots:
    """The slots of a joint graph. Their number never depends on a plan, or on the shape of a later call."""
    late = joint.late()
    numbers = [
        n for n in (*joint.primals, *joint.calls()) if n not in late and isinstance(n.meta.get("val"), torch.SymInt)
    ]
    wanted = [n for n in numbers if n.op == "placeholder" or any(not is_number(i) for i in n.all_input_nodes)]
    random = [n for n in joint.calls() if n not in late and is_random(n)]
    return Slots(tuple(wanted), tuple(slot_nodes(joint)), tuple(random), spares)


def honest_modules(joint: Joint, slots: Slots) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward that keep everything: `(forward, backward)` in AOTAutograd's calling convention."""
    module = joint.module
    module.register_buffer("_lowtide_empty", torch.empty(0), persistent=False)
    module.register_buffer("_lowtide_token", torch.zeros(1, dtype=torch.int64), persistent=False)
    examples = [n.meta["val"] for n in (*joint.primals, *slots.tensors) if isinstance(n.meta.get("val"), torch.Tensor)]
    with detect_fake_mode(examples):
        token = {"val": torch.zeros(1, dtype=torch.int64)}
        state = {"val": torch.zeros(GENERATOR_SLOT_B, dtype=torch.uint8)}
    return (
        fx.GraphModule(module, _forward_graph(joint, slots, token)),
        fx.GraphModule(module, _backward_graph(joint, slots, token, state)),
    )


def _forward_graph(joint: Joint, slots: Slots, token_meta: dict[str, Any]) -> fx.Graph:
    graph, late = fx.Graph(), joint.late()
    copy: dict[fx.Node, fx.Node] = {}
    for node in (*joint.primals, *(n for n in joint.calls() if n not in late)):
        copy[node] = graph.node_copy(node, copy.__getitem__)
    token, empty = graph.get_attr("_lowtide_token"), graph.get_attr("_lowtide_empty")
    token.meta = empty.meta = dict(token_meta)
    outputs = [
        *(copy.get(o, o) if isinstance(o, fx.Node) else o for o in joint.forward_outputs),
        *(copy[n] for n in slots.tensors),
        *(empty for _ in slots.random),
        *(empty for _ in range(slots.spares)),
        token,
        *(copy[n] for n in slots.numbers),
    ]
    graph.output(tuple(outputs)).meta["desc"] = [None] * len(outputs)
    return graph


def _backward_graph(joint: Joint, slots: Slots, token_meta: dict[str, Any], state_meta: dict[str, Any]) -> fx.Graph:
    graph, late = fx.Graph(), joint.late()
    copy: dict[fx.Node, fx.Node] = {}

    def placeholder(name: str, meta: dict[str, Any]) -> fx.Node:
        node = graph.placeholder(name)
        node.meta = dict(meta)
        return node

    for node in slots.numbers:
        copy[node] = placeholder(node.name, node.meta)
    for node in slots.tensors:
        copy[node] = placeholder(node.name, node.meta)
    for node in slots.random:
        placeholder(f"{node.name}_generator", state_meta)
    for index in range(slots.spares):
        placeholder(f"lowtide_spare_{index}", state_meta)
    token = placeholder("lowtide_token", token_meta)
    for node in joint.tangents:
        copy[node] = placeholder(node.name, node.meta)

    def need(node: Any) -> Any:
        """The node in this graph, rebuilt with what it needs if it is a view, a number or late."""
        if isinstance(node, fx.Node) and node not in copy:
            stack = [node]
            while stack:
                top = stack[-1]
                waiting = [n for n in top.all_input_nodes if n not in copy]
                if waiting:
                    stack += waiting
                    continue
                stack.pop()
                if top not in copy:
                    copy[top] = graph.node_copy(top, copy.__getitem__)
        return copy[node] if isinstance(node, fx.Node) else node

    for node in joint.calls():
        if node in late:
            need(node)
    outputs = [need(o) for o in joint.gradients]
    for index in kept_edges(joint):  # any tensor will do: what is None here AOTAutograd cuts off from autograd
        outputs[index] = token
    graph.output(tuple(outputs)).meta["desc"] = [None] * len(outputs)
    return graph


def kept_edges(joint: Joint) -> list[int]:
    """Inputs without a gradient, of which outputs are computed whose gradients do not come this time."""
    absent = [t for t in joint.tangents if not t.users]
    if not absent or not joint.trains:
        return []
    behind = ancestors(joint.forward_outputs)
    return [
        i
        for i, (primal, gradient) in enumerate(zip(joint.primals, joint.gradients, strict=False))
        if gradient is None and primal in behind and isinstance(primal.meta.get("val"), torch.Tensor)
    ]
