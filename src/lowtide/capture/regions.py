"""Regions that the user marked with `torch.compiler.nested_compile_region`: traced once each, seen whole by every plan.

Dynamo leaves one call per instance, and one graph per distinct region. Every call is replaced by the operators of the
region, so that what is captured is what the unmarked model gives: AOTAutograd refuses marked regions that train batch
norm, and inside of one a plan could neither drop nor recompute anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from lowtide.capture.joint import is_getitem, picked_index
from lowtide.capture.origin import module_name, primal_path
from lowtide.device.operators import higher_order_name
from lowtide.errors import UnsupportedOperator

Names = tuple[str, ...]


def expand_regions(gm: fx.GraphModule) -> int:
    """Replaces every call of a marked region in Dynamo's graph by the region's own operators, in place.

    Returns: how many calls there were, regions inside of regions apart.

    Raises:
        UnsupportedOperator: if a region is called in a form that is not known.

    O(nodes of the result).
    """
    calls = [
        n for n in gm.graph.nodes if n.op == "call_function" and n.target is torch.ops.higher_order.invoke_subgraph
    ]
    traced: dict[fx.GraphModule, Names] = {}
    for call in calls:
        region = _region(gm, call)
        if region not in traced:
            traced[region] = _names(call)
            expand_regions(region)
        _inline(gm, call, region, _moved(traced[region], _names(call)))
    if calls:
        gm.graph.lint()
        gm.recompile()
    return len(calls)


def _is_region(target: object) -> bool:
    return higher_order_name(target) == "invoke_subgraph"


def _region(gm: fx.GraphModule, call: fx.Node) -> fx.GraphModule:
    source = call.args[0]
    region = gm.get_submodule(str(source.target)) if isinstance(source, fx.Node) and source.op == "get_attr" else None
    if not isinstance(region, fx.GraphModule):
        raise UnsupportedOperator(
            f"a marked region is called in a form that lowtide does not know: {call.format_node()}"
        )
    return region


def _inline(gm: fx.GraphModule, call: fx.Node, region: fx.GraphModule, moved: tuple[str, str] | None) -> None:
    """Puts a region's operators in the place of one call. Its graph is left unchanged, for the next call."""
    operands = call.args[2:]  # after the graph and its name
    placeholders = region.graph.find_nodes(op="placeholder")
    if len(operands) != len(placeholders) or call.kwargs:
        raise UnsupportedOperator(f"a marked region takes {len(placeholders)} arguments: {call.format_node()}")
    known: dict[fx.Node, Any] = dict(zip(placeholders, operands, strict=True))
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            known[node] = gm.graph.node_copy(node, known.__getitem__)
            if node.op == "get_attr":
                known[node].target = _adopt(gm, region, str(node.target))
            if moved is not None:
                known[node].meta = _renamed(node.meta, *moved)
    results = region.graph.output_node().args[0]
    assert isinstance(results, Sequence), "Dynamo's regions return a tuple"
    for user in list(call.users):
        if not is_getitem(user):
            raise UnsupportedOperator(f"the results of a marked region are passed on as a whole: {user.format_node()}")
        result = results[picked_index(user)]
        if not isinstance(result, fx.Node):
            raise UnsupportedOperator(f"a marked region returns {result!r}; lowtide expects tensors and sizes")
        user.replace_all_uses_with(known[result])
        gm.graph.erase_node(user)
    source = call.args[0]
    gm.graph.erase_node(call)
    if isinstance(source, fx.Node) and not source.users:
        gm.graph.erase_node(source)


def _adopt(gm: fx.GraphModule, region: fx.GraphModule, path: str) -> str:
    """Gives what a region holds a name in the whole graph."""
    held: Any = region
    for part in path.split("."):
        held = getattr(held, part)
    name = f"region_{id(region):x}_{path.replace('.', '_')}"
    if not hasattr(gm, name):
        setattr(gm, name, held)
    return name


def _names(call: fx.Node) -> Names:
    """Per operand of a call, the name of the parameter or buffer that it is; empty for others."""
    return tuple(module_name(primal_path(a)) if isinstance(a, fx.Node) else "" for a in call.args[2:])


def _moved(traced: Names, here: Names) -> tuple[str, str] | None:
    """What the traced instance's module is called, and this one's: the first that their parameters differ in."""
    for one, other in zip(traced, here, strict=True):
        a, b = one.split("."), other.split(".")
        differing = [k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        if len(a) == len(b) and len(differing) == 1:
            return ".".join(a[: differing[0] + 1]), ".".join(b[: differing[0] + 1])
    return None


def _renamed(meta: dict[str, Any], traced: str, here: str) -> dict[str, Any]:
    """A node's facts with the modules of this instance."""
    stack = {}
    for key, entry in (meta.get("nn_module_stack") or {}).items():
        name = module_name(entry[0])
        if name == traced or name.startswith(f"{traced}."):
            stack[f"{key} {here}"] = (f"L['self'].{here}{name[len(traced) :]}", *entry[1:])
        else:
            stack[key] = entry
    return {**meta, "nn_module_stack": stack} if stack else dict(meta)
