"""Randomised leaky rectifiers: their results lie in memory as eager's do.

Eager's operator takes its input in the order of its dimensions and lays the result out so. It overwrites its noise, and
the operator that stands for it in a captured graph lays the result out as its input. Given an input that lies in the
order of its dimensions, both do the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

_PLACES = ("input", "lower", "upper", "training")


def order_inputs_of_rrelu(gm: fx.GraphModule) -> None:
    """Gives every such rectifier of Dynamo's graph that draws noise an input in the order of its dimensions, in place.

    O(nodes).
    """
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in (F.rrelu, torch.rrelu)]
    for node in found:
        given: dict[str, Any] = {**dict(zip(_places(node), node.args, strict=False)), **node.kwargs}
        source = given["input"]
        if given.get("training", False) is False or given.get("inplace", False):
            continue
        with gm.graph.inserting_before(node):
            ordered = gm.graph.call_method("contiguous", (source,))
            ordered.meta = dict(source.meta)
            ordered.meta.pop("example_value", None)
        node.replace_input_with(source, ordered)
    if found:
        gm.recompile()


def _places(node: fx.Node) -> tuple[str, ...]:
    return (*_PLACES, "inplace") if node.target is F.rrelu else _PLACES
