"""Casts of one parameter that eager's autocast would make once are made once; see `device/autocast_cache.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from lowtide.capture.contributions import contributions_to
from lowtide.capture.joint import Joint
from lowtide.capture.origin import origin_of
from lowtide.device.autocast_cache import AutocastNotes, is_kept_when_cast, is_lower
from lowtide.device.operators import CONVERT
from lowtide.ir.fidelity import Doubt

_ADDITION = torch.ops.aten.add.Tensor
_CONVERSIONS = ("to", "type", "type_as", "float", "half", "bfloat16", "double", "_to_copy", "convert_element_type")


def share_casts(
    joint: Joint, gm: fx.GraphModule, notes: AutocastNotes, edges: dict[int, int] | None
) -> tuple[frozenset[int], tuple[Doubt, ...]]:
    """Has all uses of a parameter in one autocast context read one cast, whose gradient is added up before it is cast.

    Arguments:
        joint: as traced; its module and its gradients are changed.
        gm: of which it was traced.
        notes: of that trace.
        edges: per input that needs a gradient, along how many edges it comes; changed as well. None if not known.

    Returns: the inputs of which autocast keeps a cast; doubts about what is left as it was.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(joint.primals):
        return frozenset(), ()
    kept: set[int] = set()
    doubts: list[Doubt] = []
    late = joint.late()
    for index, (placeholder, primal) in enumerate(zip(placeholders, joint.primals, strict=True)):
        example = placeholder.meta.get("example_value")
        if not isinstance(example, torch.Tensor) or not is_kept_when_cast(example) or primal in joint.mutated:
            continue
        periods: dict[Any, list[fx.Node]] = defaultdict(list)
        for cast in primal.users:
            if cast in late or not _is_cast(cast) or not notes.keeps_at(number := cast.meta.get("seq_nr", -1)):
                continue
            if _is_conversion(gm, cast) is not True:
                periods[notes.period_of(number), cast.meta["val"].dtype].append(cast)
                kept.add(index)
        for casts in periods.values():
            known = all(_is_conversion(gm, cast) is False for cast in casts)
            if len(casts) > 1 and not (known and _share(joint, index, casts, edges)):
                doubts.append(_doubt(casts[-1]))
    joint.module.graph.lint()
    return frozenset(kept), tuple(dict.fromkeys(doubts))


def _is_cast(node: fx.Node) -> bool:
    return node.target is CONVERT and is_lower(node.meta["val"].dtype)


def _is_conversion(gm: fx.GraphModule, cast: fx.Node) -> bool | None:
    """Whether the model itself asked for a cast, of which autocast keeps nothing; None where that cannot be told."""
    names = {source.name for source in cast.meta.get("from_node") or ()}
    modules = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
    found = {_name(n) in _CONVERSIONS for m in modules for n in m.graph.nodes if n.name in names}
    return found.pop() if len(found) == 1 else None


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", target)).partition(".")[0]


def _share(joint: Joint, index: int, casts: Sequence[fx.Node], edges: dict[int, int] | None) -> bool:
    """Puts the first of several casts in the place of all; returns whether that could be done."""
    gradient = joint.backward_outputs[index] if index < len(joint.backward_outputs) else None
    if isinstance(gradient, fx.Node):
        if edges is None or index not in edges or set(gradient.users) - {joint.module.graph.output_node()}:
            return False
        parts = contributions_to(gradient, edges[index])
        numbers = {c.meta["seq_nr"] for c in casts}
        back = [p for p in parts if p.target is CONVERT and _is_of_backward(p) and p.meta.get("seq_nr") in numbers]
        if len({p.meta["seq_nr"] for p in back}) != len(back):
            return False
        if len(back) > 1:
            if len(back) < len(casts) and len(back) < len(parts):
                return False  # where among the others the sum would be added is not known
            _add_up_first(joint, index, parts, back)
            edges[index] -= len(back) - 1
    for cast in casts[1:]:
        cast.replace_all_uses_with(casts[0])
        joint.forward_outputs[:] = [casts[0] if o is cast else o for o in joint.forward_outputs]
        joint.module.graph.erase_node(cast)
    return True


def _is_of_backward(node: fx.Node) -> bool:
    return bool(node.meta.get("autograd_backward", False))


def _add_up_first(joint: Joint, index: int, parts: Sequence[fx.Node], back: Sequence[fx.Node]) -> None:
    """Adds up what flows back to several casts before it is cast back, and adds the other contributions to that.

    Arguments:
        parts: all contributions to the gradient, in the order in which autograd's engine adds them.
        back: those of them that are cast back. The cast was made at the first use, whose part comes last.
    """
    graph, gradient = joint.module.graph, joint.backward_outputs[index]
    *earlier, last = back
    total: Any = earlier[0].args[0]
    for part in (*earlier[1:], last):
        with graph.inserting_before(last):
            total = _sum(graph, total, part.args[0], last)
    last.update_arg(0, total)
    _compute(last)
    kept = [p for p in parts if p not in earlier]
    whole = kept[0]
    for part in kept[1:]:
        with graph.inserting_before(gradient):
            whole = _sum(graph, whole, part, gradient)
    joint.backward_outputs[index] = whole
    gradient.replace_all_uses_with(whole)
    pending = [gradient]
    while pending:
        node = pending.pop()
        if node is not whole and not node.users:
            pending += node.all_input_nodes if node not in earlier else []
            graph.erase_node(node)


def _sum(graph: fx.Graph, left: Any, right: Any, model: fx.Node) -> fx.Node:
    node = graph.call_function(_ADDITION, (left, right))
    node.meta = {**model.meta, "is_gradient_acc": True}
    _compute(node)
    return node


def _compute(node: fx.Node) -> None:
    """Gives a node the geometry of its result."""
    arguments: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args]
    with arguments[0].fake_mode:
        node.meta["val"] = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
    node.meta.pop("tensor_meta", None)


def _doubt(cast: fx.Node) -> Doubt:
    return Doubt(
        "a parameter is used several times in one autocast context here, which casts it once and adds up its gradient "
        "in the lower precision; in this capture the gradient of each use is cast before it is added",
        'Pass torch.autocast cache_enabled=False, or accept other roundings with numerics="reassociated"',
        origin_of(cast).source,
    )
