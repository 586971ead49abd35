"""Results of a graph that share memory and are used inside it as well: their gradients are added up in another order.

AOTAutograd hands such results out as views of one of them, which autograd takes again outside the graph: the gradients
that come from outside are added up there, in the order of the results and before those from inside. Eager adds them up
per view. Where three contributions or more meet, their sum depends on the order. Parts of one `chunk`, `split` or
`unbind` are no such views: torch leaves them in the graph.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from lowtide.capture.origin import origin_of
from lowtide.device.storage import number_of_storage
from lowtide.device.trees import tensors_in
from lowtide.ir.fidelity import Doubt


def doubts_of_shared_outputs(gm: fx.GraphModule) -> tuple[Doubt, ...]:
    """A doubt for every storage that three differentiable results share, or two where the graph uses it besides.

    Arguments:
        gm: as Dynamo captured it, every node with its example. O(nodes).
    """
    sharing: dict[int, list[fx.Node]] = defaultdict(list)
    for node in gm.graph.nodes:
        example = _example(node)
        if node.op not in ("placeholder", "get_attr", "output") and example is not None and example.requires_grad:
            sharing[number_of_storage(example)].append(node)
    (output,) = gm.graph.find_nodes(op="output")
    results = set(output.all_input_nodes)
    found = []
    for nodes in sharing.values():
        shared = [node for node in nodes if node in results and not _is_part(node)]
        if len(shared) > 2 or (len(shared) > 1 and _is_used(nodes, output)):
            found.append(Doubt(_CAUSE, _REMEDY, origin_of(shared[-1]).source))
    return tuple(found)


def _example(node: fx.Node) -> torch.Tensor | None:
    example: Any = node.meta.get("example_value")
    return example if isinstance(example, torch.Tensor) and example.layout is torch.strided else None


def _is_part(node: fx.Node) -> bool:
    """Whether a node is one of several views that one operator gives."""
    return node.target is operator.getitem and _example(node.all_input_nodes[0]) is None


def _is_used(nodes: Sequence[fx.Node], output: fx.Node) -> bool:
    """Whether something that has a gradient is computed from nodes that share a storage."""
    number = number_of_storage(nodes[0].meta["example_value"])
    users = {user for node in nodes for user in node.users} - {output, *nodes}
    made = (tensor for user in users for tensor in tensors_in(user.meta.get("example_value")))
    return any(t.requires_grad and (t.layout is not torch.strided or number_of_storage(t) != number) for t in made)


_CAUSE = (
    "results that share memory, this one a view of another, are more than two or used inside the graph as well, and "
    "their gradients would be added up in another order than in plain PyTorch"
)
_REMEDY = (
    "Return a copy of the view (.clone()), cut it with chunk or split, or accept other roundings with "
    'numerics="reassociated"'
)
