"""The joint graph as AOTAutograd hands it over, sorted into what each node is.

A node is a *tensor base* (an operator's output, or a placeholder), a *view* of one, a *symbolic number*, or an
*operator call*. Nothing is specialised yet: shapes may still be symbolic.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from lowtide.device.compiled_kernels import kernel_of
from lowtide.device.operators import Overload, arguments_of, overload_of, overwrites, plain_name, results_of
from lowtide.device.storage import number_of_storage
from lowtide.errors import UnsupportedOperator

_SEEDED = torch.Tag.nondeterministic_seeded
# Checks that trace as operators without outputs: they were made while tracing and are not part of the step.
_ASSERTIONS = ("_assert", "sym_constrain", "_functional_assert", "_functional_sym_constrain")


def is_tensor(node: fx.Node) -> bool:
    """Whether the node's value is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_number(node: fx.Node) -> bool:
    """Whether the node's value is a (symbolic) number."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def is_getitem(node: fx.Node) -> bool:
    """Whether the node picks one of several results."""
    return node.op == "call_function" and node.target is operator.getitem


def picked_index(node: fx.Node) -> int:
    """Which of several results a getitem picks."""
    index = node.args[1]
    assert isinstance(index, int), "results are picked by number"
    return index


def is_assertion(node: fx.Node) -> bool:
    """Whether the node only checks something that held while tracing."""
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and name.startswith(_ASSERTIONS)


def overload(node: fx.Node) -> Overload | None:
    """The operator overload that a node calls; None for higher-order and Python operators."""
    return overload_of(node.target)


def is_random(node: fx.Node) -> bool:
    """Whether the call advances the random generator: tagged so, and not switched off by its arguments."""
    op = overload(node)
    if op is None or _SEEDED not in op.tags:
        return False
    bound = bind(node, op)
    if "dropout_p" in bound:
        return bool(bound["dropout_p"] != 0)
    if op.overloadpacket is torch.ops.aten.native_dropout:
        return bool(bound["train"] is not False and bound["p"] != 0)
    if op.overloadpacket in (torch.ops.aten.rrelu_with_noise, torch.ops.aten.rrelu_with_noise_functional):
        return bool(bound["training"])
    return True


def bind(node: fx.Node, op: Overload) -> dict[str, Any]:
    """Arguments of a call by schema name, defaults filled in."""
    bound = {}
    for position, argument in enumerate(arguments_of(op)):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value
    return bound


def is_opaque(node: fx.Node) -> bool:
    """Whether nothing is known of what the call does besides its outputs."""
    if kernel_of(node.target) is not None:
        return False
    op = overload(node)
    if op is None:
        return not is_getitem(node) and not (callable(node.target) and getattr(node.target, "__module__", "") in _PURE)
    if op.namespace in _PURE_OF_OTHERS:
        return plain_name(op) not in _PURE_OF_OTHERS[op.namespace] or overwrites(op)
    return op.namespace not in ("aten", "prims", "prim", "lowtide") or overwrites(op)


_PURE_OF_OTHERS = {
    # Quantising, and products with what was quantised: functions of their arguments, without state or generator.
    "bitsandbytes": {
        "dequantize_4bit", "dequantize_blockwise", "gemm_4bit", "gemv_4bit", "int8_linear_matmul", "int8_mm_dequant",
        "int8_scaled_mm", "int8_vectorwise_dequant", "quantize_4bit", "quantize_blockwise",
    },
}  # fmt: skip
"""Operators of other libraries that may be measured and recomputed like torch's own: known to be pure, by name."""

_PURE = ("_operator", "math", "operator")


def _storages(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        try:
            return {number_of_storage(value)}
        except NotImplementedError:  # sparse and opaque layouts have none
            return set()
    if isinstance(value, tuple | list):
        return set().union(*(_storages(v) for v in value)) if value else set()
    return set()


def viewed(node: fx.Node) -> fx.Node | None:
    """The node whose bytes this node's result shares, or None when it has bytes of its own.

    The schema says it for most operators; some share without saying so (`_unsafe_view`, `unsafe_split`), so fake
    storages are compared as well.
    """
    op = overload(node)
    if op is None:
        return None
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor | tuple | list)]
    returns = results_of(op)
    if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        bound = bind(node, op)
        names = {a.name for a in arguments_of(op) if a.alias_info is not None}
        sources = [bound[name] for name in names if isinstance(bound[name], fx.Node)]
        return sources[0] if sources else None
    mine = _storages(node.meta.get("val"))
    for source in tensors if len(mine) == 1 else ():
        if mine <= _storages(source.meta.get("val")):
            return source
    return None


@dataclass
class Joint:
    """One captured graph, forward and backward together (or forward alone, for inference).

    Arguments:
        module: the graph module; its nodes are what everything else refers to.
        primals, tangents: placeholders, in the order in which AOTAutograd passes them.
        forward_outputs: what the forward hands over: new contents of mutated inputs, then the user's outputs.
        backward_outputs: one gradient per primal, or None, then further contributions to some; empty for inference.
        mutated: per primal that the forward overwrites afterwards, the output with its new content.
        statics: indices of primals that are parameters or buffers.
        names: names for primals, by index, where the frontend knows better ones.
        shares: primals whose gradient is handed over in several contributions: each with its index, and those of the
            contributions after the first among the backward's outputs.
        undivided: primals with several uses whose gradient is one sum all the same.
    """

    module: fx.GraphModule
    primals: list[fx.Node]
    tangents: list[fx.Node]
    forward_outputs: list[Any]
    backward_outputs: list[Any]
    mutated: dict[fx.Node, Any]
    statics: frozenset[int]
    names: dict[int, str] = field(default_factory=dict)
    shares: tuple[tuple[int, tuple[int, ...]], ...] = ()
    undivided: tuple[int, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether there is a backward."""
        return bool(self.backward_outputs)

    @property
    def handed_over(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Primals with several uses, with their further contributions: none where their gradient is one sum."""
        return (*self.shares, *((index, ()) for index in self.undivided))

    @property
    def gradients(self) -> list[Any]:
        """What autograd is told that the backward returns: one gradient per primal, or None."""
        return self.backward_outputs[: len(self.backward_outputs) - sum(len(further) for _, further in self.shares)]

    def late(self) -> set[fx.Node]:
        """Nodes that depend on a tangent."""
        found: set[fx.Node] = set(self.tangents)
        for node in self.module.graph.nodes:
            if node.op == "call_function" and any(n in found for n in node.all_input_nodes):
                found.add(node)
        return found

    def calls(self) -> list[fx.Node]:
        """Everything between placeholders and output, in graph order, without assertions."""
        return [n for n in self.module.graph.nodes if n.op in ("call_function", "get_attr") and not is_assertion(n)]


def ancestors(nodes: Iterable[Any]) -> set[fx.Node]:
    """The given nodes and everything they are computed from."""
    found: set[fx.Node] = set()
    stack = [n for n in nodes if isinstance(n, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def joint_from(
    gm: fx.GraphModule, num_forward_outputs: int | None, statics: Iterable[int], names: dict[int, str]
) -> Joint:
    """Sorts a graph module as AOTAutograd passes it to a partition function (or to the inference compiler).

    Arguments:
        num_forward_outputs: how many leading outputs belong to the forward; None when all do.
        statics: indices of primals that are parameters or buffers.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    outputs = gm.graph.output_node().args[0]
    flat = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    count = len(flat) if num_forward_outputs is None else num_forward_outputs
    # The backward's arguments follow the forward's; their names are AOTAutograd's contract with partitioners.
    tangents = [] if num_forward_outputs is None else [p for p in placeholders if p.name.startswith("tangents")]
    primals = [p for p in placeholders if p not in set(tangents)]
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "call_function", "get_attr", "output"):
            raise UnsupportedOperator(
                f"the captured graph has a {node.op} node ({node.name}); lowtide expects calls only"
            )
    return Joint(
        module=gm,
        primals=primals,
        tangents=tangents,
        forward_outputs=flat[:count],
        backward_outputs=flat[count:],
        mutated=_mutated(gm, primals, flat[:count]),
        statics=frozenset(statics),
        names=names,
    )


def _mutated(gm: fx.GraphModule, primals: list[fx.Node], outputs: list[Any]) -> dict[fx.Node, Any]:
    """Primals that the caller overwrites after the forward, from AOTAutograd's output descriptors."""
    descriptors = gm.graph.output_node().meta.get("desc") or []
    index_of = {getattr(p.meta.get("desc"), "idx", None): p for p in primals}
    found = {}
    for output, descriptor in zip(outputs, descriptors, strict=False):
        source = getattr(descriptor, "mutated_input", None)
        if source is None:
            continue
        primal = next((p for p in primals if p.meta.get("desc") == source), index_of.get(getattr(source, "idx", None)))
        if primal is not None:
            found[primal] = output
    return found
