"""Results of a graph that share memory, with each other or with its inputs, and are used inside it as well.

AOTAutograd hands such results out as views of one of them, or of the input, which autograd takes again outside the
graph: gradients that come from outside are added up there, before those from inside and in the order of the results.
Eager adds them up per view, at its place in the program. Where three contributions or more meet, their sum depends on
the order. So each such result gets a gradient of its own (`device/handed_out.py`), which the graph's own views add up.

Parts of one `chunk`, `split` or `unbind` are views that torch leaves in the graph, unless they are of an input.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from lowtide.capture.joint import Joint
from lowtide.device.handed_out import HANDED_OUT
from lowtide.device.storage import number_of_storage
from lowtide.device.trees import tensors_in


def divide_shared_outputs(gm: fx.GraphModule) -> int:
    """Gives results that share memory gradients of their own, where eager's order of addition asks for that.

    Results of which autograd would add up the same are left: those may be overwritten in place by the caller.

    Arguments:
        gm: as Dynamo captured it, every node with its example; changed.

    Returns: how many results. O(nodes).
    """
    sharing: dict[int, list[fx.Node]] = defaultdict(list)
    for node in gm.graph.nodes:
        example = _example(node)
        if node.op != "output" and example is not None and example.requires_grad:
            sharing[number_of_storage(example)].append(node)
    output = gm.graph.output_node()
    results = set(output.all_input_nodes)
    count = 0
    for nodes in sharing.values():
        given = [n for n in nodes if n.op in ("placeholder", "get_attr")]
        shared = [n for n in nodes if n in results and n not in given and (given or not _is_part(n))]
        used = _is_used(nodes, output)
        if len(shared) > (1 if given or used else 2) or (given and used and shared):
            for node in shared:
                with gm.graph.inserting_before(output):
                    own = gm.graph.call_function(HANDED_OUT, (node,))
                own.meta = dict(node.meta)
                output.replace_input_with(node, own)
            count += len(shared)
    if count:
        gm.recompile()
    return count


def shared_outputs(joint: Joint) -> frozenset[int]:
    """The results of a captured graph that have gradients of their own though they share memory."""
    results = enumerate(joint.forward_outputs)
    return frozenset(i for i, o in results if isinstance(o, fx.Node) and o.target is HANDED_OUT)


def _example(node: fx.Node) -> torch.Tensor | None:
    """A node's example; None where it is no tensor with memory of its own, as inside `torch.func`'s transforms."""
    example: Any = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        return None
    try:
        number_of_storage(example)
    except NotImplementedError:
        return None
    return example


def _is_part(node: fx.Node) -> bool:
    """Whether a node is one of several views that one operator gives."""
    return node.target is operator.getitem and _example(node.all_input_nodes[0]) is None


def _is_used(nodes: Sequence[fx.Node], output: fx.Node) -> bool:
    """Whether something that has a gradient is computed from nodes that share a storage."""
    number = number_of_storage(nodes[0].meta["example_value"])
    users = {user for node in nodes for user in node.users} - {output, *nodes}
    made = (t for user in users for t in tensors_in(user.meta.get("example_value")))
    return any(t.requires_grad and not _shares(t, number) for t in made)


def _shares(tensor: torch.Tensor, number: int) -> bool:
    try:
        return tensor.layout is torch.strided and number_of_storage(tensor) == number
    except NotImplementedError:
        return False
