"""The neighbourhood of DTE and Coop: what has to be recomputed before a value can be, by classes. Torch-free."""

from __future__ import annotations

from tests.oracle.ledger import Value
from tests.oracle.neighbourhood import Classes


def upstream_ns(neighbourhood: Classes, root: Value) -> int:
    """Over evicted inputs and sibling outputs of the calls that make a root: the greater of class's cost and own cost.

    Consumers are not looked at; they count through classes that were joined before.
    """
    cost_ns = 0
    for tensor in (root, *root.views):
        if tensor.call is None:
            continue
        for neighbour in (*tensor.call.inputs, *tensor.call.outputs):
            near = neighbour.root
            group = neighbourhood.class_of(near)
            if near is not root and group is not None:
                cost_ns += max(neighbourhood.class_ns(group), near.cost_ns)
    return cost_ns
