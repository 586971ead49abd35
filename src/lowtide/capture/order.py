"""The program's order of first runs: what the forward owes its caller first, the rest when the backward wants it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from lowtide.capture.joint import Joint, ancestors, is_opaque, is_random


def program_order(joint: Joint, late: set[fx.Node]) -> Iterator[tuple[fx.Node, int]]:
    """Nodes in program order with their segment (0 forward, 1 backward).

    A node that only the backward needs and that no tangent reaches would sit in memory from the forward on for
    nothing: it moves to just before its first reader. Random and opaque calls of the forward remain in the forward,
    in their order, and so does whatever reads an input that is overwritten after it.
    """
    calls = joint.calls()
    early = [n for n in calls if n not in late]
    if not joint.trains:
        yield from ((n, 0) for n in early)
        return
    rooted = {n for n in early if is_opaque(n) or is_random(n) or any(i in joint.mutated for i in n.all_input_nodes)}
    forward = ancestors([*joint.forward_outputs, *rooted])
    for node in early:
        if node in forward or node.op == "get_attr":
            yield node, 0
    emitted = {n for n in early if n in forward or n.op == "get_attr"}
    for node in calls:
        if node not in late:
            continue
        for earlier in _missing(node, emitted):
            yield earlier, 1
        yield node, 1
        emitted.add(node)
    for node in joint.backward_outputs:  # a gradient that no tangent reaches
        if isinstance(node, fx.Node) and node.op == "call_function" and node not in emitted:
            for earlier in (*_missing(node, emitted), node):
                emitted.add(earlier)
                yield earlier, 1


def _missing(node: fx.Node, emitted: set[fx.Node]) -> list[fx.Node]:
    """What the node needs that has not run yet, in an order that works; marks it as emitted."""
    order: list[fx.Node] = []
    pending = [iter(node.all_input_nodes)]  # one per node on the way down; not recursive, for chains are long
    above: list[fx.Node] = []
    while pending:
        source = next(pending[-1], None)
        if source is None:
            pending.pop()
            if above:
                order.append(above.pop())
        elif source.op == "call_function" and source not in emitted:
            emitted.add(source)
            above.append(source)
            pending.append(iter(source.all_input_nodes))
    return order
