"""Rewrites of the joint graph that make every forward operator safe to recompute, and the backward eager's own.

Each is a pass `Joint -> None` on the captured module, before anything is extracted; `PASSES` is the list.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

import torch
from torch import fx

from lowtide.capture.joint import Joint, bind, is_getitem, overload, picked_index
from lowtide.device.handed_out import HANDED_OUT
from lowtide.device.in_place_layouts import LAID_OUT, has_gaps
from lowtide.device.operators import CONVERT, arguments_of
from lowtide.device.recurrence import EAGER_RECURRENT_LAYER, RECURRENT_LAYER

aten = torch.ops.aten


def drop_running_statistics(joint: Joint) -> None:
    """Batch norm's backward in training does not read the running statistics: remove the edge.

    They are overwritten after the forward, so saving them for the backward would fail autograd's version check.
    """
    for node in joint.module.graph.nodes:
        op = overload(node)
        if op is None or op.overloadpacket not in (
            aten.native_batch_norm_backward,
            aten.batch_norm_backward,
            aten.cudnn_batch_norm_backward,
            aten.miopen_batch_norm_backward,
        ):
            continue
        bound = bind(node, op)
        if not bound.get("train", bound.get("update", True)):
            continue
        position = {a.name: i for i, a in enumerate(arguments_of(op))}
        for name in ("running_mean", "running_var"):
            if name in position and position[name] < len(node.args):
                node.update_arg(position[name], None)


def snapshot_mutated_inputs(joint: Joint) -> None:
    """Everything reads a copy of an input that will be overwritten, so that recomputations read the old content.

    A running mean is a few kilobytes; the copy lives on only as long as some recomputation may need it.
    """
    graph = joint.module.graph
    for primal in joint.mutated:
        users = [u for u in primal.users if u.op != "output"]
        if not users:
            continue
        first = next(n for n in graph.nodes if n in set(users))
        value = primal.meta["val"]
        with graph.inserting_before(first):
            copy = graph.call_function(LAID_OUT if has_gaps(value) else aten.clone.default, (primal,))
        copy.meta = {k: primal.meta[k] for k in ("val", "tensor_meta") if k in primal.meta}
        with value.fake_mode if hasattr(value, "fake_mode") else torch.no_grad():
            copy.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        copy.meta["partitioner_tag"] = "is_forward"
        for user in users:
            user.replace_input_with(primal, copy)


def share_what_is_handed_out(joint: Joint) -> None:
    """Results that seem to be copies share the memory that they are of; see `device/handed_out.py`."""
    for node in joint.module.graph.find_nodes(op="call_function", target=HANDED_OUT):
        (source,) = node.args
        node.target = aten.alias.default
        with source.meta["val"].fake_mode:
            node.meta["val"] = aten.alias.default(source.meta["val"])


def dropout_as_eager(joint: Joint) -> None:
    """Computes dropout with eager's rounding of `1 / (1 - p)`, on a CPU.

    Eager's `F.dropout` draws weights and divides them by `1 - p` in the tensor's dtype; `native_dropout`, which is
    captured for it, draws the same and multiplies by a scale computed in 64 bits. In float32 the two differ for every
    fifth p or so (0.15 is one, 0.1 is not). Below 32 bits results are alike, and gradients are not.
    """
    graph = joint.module.graph
    for node in list(graph.nodes):
        op = overload(node)
        if op is None or op.overloadpacket not in (aten.native_dropout, aten.native_dropout_backward):
            continue
        value = node.args[0].meta["val"]
        forward = node if op.overloadpacket is aten.native_dropout else _dropout_of(node.args[1])
        if forward is None or value.device.type != "cpu":
            continue
        bound = bind(forward, overload(forward))  # type: ignore[arg-type]
        if bound["train"] is False or not 0 < bound["p"] < 1:
            continue
        left = 1.0 - bound["p"]
        weight = _in_float32(1.0 / _in_float32(left))
        if value.dtype is torch.float32 and weight != _in_float32(1.0 / left):
            if node is forward:
                _weigh(joint, node, weight)
            else:
                node.update_arg(2, weight)
        elif value.dtype in (torch.bfloat16, torch.float16) and node is not forward:
            gradient, mask = node.args[:2]
            with graph.inserting_before(node):
                drawn = _like(graph, CONVERT, (mask,), {"dtype": value.dtype}, node)
                weights = _like(graph, aten.div.Scalar, (drawn, left), {}, node)
                result = _like(graph, aten.mul.Tensor, (gradient, weights), {}, node)
            _replace(joint, node, result)


def drop_everything_as_eager(joint: Joint) -> None:
    """Dropout with p = 1 multiplies by zero and draws nothing, as eager's; `native_dropout` would draw on a CPU."""
    graph = joint.module.graph
    unused: list[fx.Node] = []
    for node in list(graph.nodes):
        op = overload(node)
        if op is None or op.overloadpacket not in (aten.native_dropout, aten.native_dropout_backward):
            continue
        forward = node if op.overloadpacket is aten.native_dropout else _dropout_of(node.args[1])
        if forward is None:
            continue
        bound = bind(forward, overload(forward))  # type: ignore[arg-type]
        if bound["train"] is False or bound["p"] != 1:
            continue
        if node is forward:
            unused.append(node)
            dropped = [n for n in node.users if is_getitem(n) and picked_index(n) == 0]
        else:
            dropped = [node]
        for result in dropped:
            with graph.inserting_before(result):
                zero = _like(graph, aten.mul.Tensor, (node.args[0], 0.0), {}, result)
            _replace(joint, result, zero)
    for forward in unused:
        if all(is_getitem(mask) and not mask.users for mask in forward.users):
            for mask in list(forward.users):
                graph.erase_node(mask)
            graph.erase_node(forward)


def _in_float32(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _weigh(joint: Joint, dropout: fx.Node, weight: float) -> None:
    """Makes a dropout's result of its mask; `native_dropout_backward` multiplies a tensor by a mask and a number."""
    graph = joint.module.graph
    kept = next((n for n in dropout.users if is_getitem(n) and picked_index(n) == 0), None)
    if kept is None:
        return
    with graph.inserting_before(kept):
        mask = _like(graph, operator.getitem, (dropout, 1), {}, kept)
        mask.meta["val"] = dropout.meta["val"][1]
        result = _like(graph, aten.native_dropout_backward.default, (dropout.args[0], mask, weight), {}, kept)
    _replace(joint, kept, result)


def _replace(joint: Joint, node: fx.Node, by: fx.Node) -> None:
    """Puts a node in the place of another one, among what the graph hands over as well."""
    node.replace_all_uses_with(by)
    joint.forward_outputs[:] = [by if o is node else o for o in joint.forward_outputs]
    joint.backward_outputs[:] = [by if o is node else o for o in joint.backward_outputs]
    joint.mutated.update({primal: by for primal, new in joint.mutated.items() if new is node})
    joint.module.graph.erase_node(node)


def keep_recurrent_workspaces(joint: Joint) -> None:
    """A recurrent layer with a backward makes the workspace that the backward reads.

    Eager's operator makes it only where gradients are being recorded, which is not so inside a captured forward.
    """
    for node in joint.module.graph.nodes:
        if overload(node) is EAGER_RECURRENT_LAYER and any(
            is_getitem(user) and picked_index(user) == _WORKSPACE and user.users for user in node.users
        ):
            node.target = RECURRENT_LAYER


_WORKSPACE = 3  # its place among a recurrent layer's results


def _dropout_of(mask: fx.Node) -> fx.Node | None:
    """The dropout that made a mask, through getitem and views."""
    node = mask
    while isinstance(node, fx.Node) and node.op == "call_function":
        op = overload(node)
        if op is not None and op.overloadpacket is aten.native_dropout:
            return node
        node = node.args[0]  # type: ignore[assignment]
    return None


def _like(
    graph: fx.Graph, target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], model: fx.Node
) -> fx.Node:
    """A node with fresh bytes of the model node's geometry."""
    node = graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    node.meta = dict(model.meta)
    value = model.meta["val"]
    with value.fake_mode:
        node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return node


PASSES: tuple[Callable[[Joint], None], ...] = (
    drop_running_statistics,
    snapshot_mutated_inputs,
    share_what_is_handed_out,
    drop_everything_as_eager,
    dropout_as_eager,
    keep_recurrent_workspaces,
)


def rewrite(joint: Joint) -> Joint:
    """Applies every pass and removes what became unused."""
    for apply in PASSES:
        apply(joint)
    joint.module.graph.eliminate_dead_code()
    joint.module.graph.lint()
    return joint
