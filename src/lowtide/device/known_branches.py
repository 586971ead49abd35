"""Branches on tensors whose outcome is known before the model runs.

They depend on sizes, on what the caller gave, or on the range of a random number alone. Libraries ask, for instance,
whether position ids that they made themselves count up without a gap, whether an attention mask masks anything at all,
or whether a number drawn from [0, 1) is below a probability of 0. Dynamo takes every branch on a tensor for the end of
a graph. Inside a capture of ours it follows those that can be worked out, as the model does without lowtide; what the
caller gave then becomes a *fact*, which has to hold again whenever that capture is used. Random numbers are still
drawn.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from lowtide.device.dispatch_modes import no_modes
from lowtide.device.trees import tensors_in

_THREAD = threading.local()  # `search`: the Search of the capture that runs on this thread
_MOST_NODES = 64
_MOST_ELEMENTS = 1 << 24
# Where sizes vary and nothing else matters, the outcome has to be the same for all of these.
_OTHER_SIZES: tuple[Callable[[int], int], ...] = (lambda n: n, lambda n: n + 1, lambda n: 2 * n + 3)
Signature = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Fact:
    """What held of a call's arguments when it was captured.

    Arguments:
        graph: computes one truth value; its placeholders' targets are sources, evaluated on the arguments.
        outcome: what it came to.
        signature: the shapes for which it was captured; None where they may vary.
        where: file and line of the code that asked.
    """

    graph: fx.Graph
    outcome: bool
    signature: Signature | None
    where: tuple[str, int] = ("", 0)

    def holds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether it holds of other arguments; arguments of which it makes no sense do not have it."""
        try:
            return _truth(self.graph, _given(args, kwargs)) is self.outcome
        except Exception:  # whatever the arguments' own code raises: then they are of another kind
            return False


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The shapes of a call's tensors."""
    return tuple(n for x in tensors_in((args, kwargs)) for n in (-1, *x.shape))


@contextlib.contextmanager
def known_branches(args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Iterator[list[Fact]]:
    """Inside, Dynamo follows branches on this thread that are known from a call's arguments; lists the facts used.

    Arguments:
        args, kwargs: of the one function that Dynamo compiles, which has to call them so. Without `kwargs`, only what
            follows from sizes is known: where Dynamo compiles several functions, each has an `args` of its own.
    """
    _install()
    before = getattr(_THREAD, "search", None)
    given = None if kwargs is None else _given(args, kwargs)
    search = _THREAD.search = _Search(given, signature_of(args, kwargs or {}))
    try:
        yield search.facts
    finally:
        _THREAD.search = before


def facts_so_far() -> tuple[Fact, ...]:
    """What the capture that runs on this thread takes for granted of its call's arguments."""
    search = getattr(_THREAD, "search", None)
    return () if search is None else tuple(search.facts)


@dataclass(eq=False)
class _Search:
    """One capture: the arguments, and what was found out about them."""

    given: dict[str, Any] | None
    signature: Signature
    facts: list[Fact] = field(default_factory=list)
    answers: dict[fx.Node, bool | None] = field(default_factory=dict)

    def answer(self, node: fx.Node, where: tuple[str, int]) -> bool | None:
        """What a tensor of one truth value holds; None if that cannot be known."""
        if node not in self.answers:
            try:
                with no_modes(), torch.no_grad():
                    self.answers[node] = self._work_out(node, where)
            except Exception:  # an operator that cannot run so: Dynamo breaks the graph, as it would have
                self.answers[node] = None
        return self.answers[node]

    def _work_out(self, node: fx.Node, where: tuple[str, int]) -> bool | None:
        example = node.meta.get("example_value")
        if not isinstance(example, torch.Tensor) or example.dtype is not torch.bool or example.numel() != 1:
            return None
        if (outcome := _known_by_range(node)) is not None:
            return outcome
        order = _made_from(node)
        if order is None:
            return None
        inputs = [n for n in order if n.op == "placeholder"]
        if not any(isinstance(n.meta["example_value"], torch.Tensor) for n in inputs):
            hints = {_source(n): n.meta["example_value"].node.hint for n in inputs}
            graph = _copied(order)
            outcomes = {_truth(graph, hints, size) for size in _OTHER_SIZES}
            return outcomes.pop() if len(outcomes) == 1 else None
        if self.given is None:
            return None
        graph = _copied(order)
        outcome = _truth(graph, self.given)
        varies = any(isinstance(n.meta.get("example_value"), torch.SymInt) for n in node.graph.nodes)
        self.facts.append(Fact(graph, outcome, None if varies else self.signature, where))
        return outcome


@functools.cache
def _install() -> None:
    """Lets tensors of Dynamo be constants where a jump or `item()` asks, for good; outside our captures as before."""
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.tensor import TensorVariable

    plain_is, plain_as = TensorVariable.is_python_constant, TensorVariable.as_python_constant
    plain_item = TensorVariable.method_item
    jumps = symbolic_convert.__file__

    def known(variable: Any, tracer: Any) -> bool | None:
        search: _Search | None = getattr(_THREAD, "search", None)
        where = (tracer.f_code.co_filename, tracer.lineno)
        return None if search is None else search.answer(variable.proxy.node, where)

    def answer(variable: Any) -> bool | None:
        frame = sys._getframe(2)
        if frame.f_code.co_filename != jumps or frame.f_code.co_name != "inner":
            return None
        return known(variable, frame.f_locals["self"])

    def method_item(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        found = None if args or kwargs else known(self, tx)
        return plain_item(self, tx, *args, **kwargs) if found is None else ConstantVariable.create(found)

    def is_python_constant(self: Any) -> bool:
        return answer(self) is not None or plain_is(self)

    def as_python_constant(self: Any) -> Any:
        found = answer(self)
        return plain_as(self) if found is None else found

    TensorVariable.is_python_constant = is_python_constant  # type: ignore[method-assign]
    TensorVariable.as_python_constant = as_python_constant  # type: ignore[method-assign]
    TensorVariable.method_item = method_item  # type: ignore[method-assign]


_FROM_0_TO_1 = frozenset({"rand", "rand_like"})
_BELOW, _ABOVE = frozenset({"lt", "le"}), frozenset({"gt", "ge"})


def _known_by_range(node: fx.Node) -> bool | None:
    """The outcome of comparing a number drawn from [0, 1) with one outside that range; None for anything else."""
    name = _name(node).strip("_")
    if name not in _BELOW | _ABOVE or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    below = name in _BELOW
    if isinstance(left, int | float):
        left, right, below = right, left, not below
    if not isinstance(left, fx.Node) or _name(left) not in _FROM_0_TO_1 or not isinstance(right, int | float):
        return None
    if any(_overwrites(user) for user in left.users):
        return None
    if right >= 1:
        return below
    known_at_0 = name in (("lt", "ge") if left is node.args[0] else ("gt", "le"))
    return (not below) if right < 0 or (right == 0 and known_at_0) else None


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What sources name: the locals of the function that Dynamo compiles."""
    return {"L": {"args": args, "kwargs": kwargs}}


def _made_from(node: fx.Node) -> list[fx.Node] | None:
    """The node and everything it is computed from, in order; None where that is more than arguments and constants."""
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        one = stack.pop()
        if one in found:
            continue
        found.add(one)
        value = one.meta.get("example_value")
        if len(found) > _MOST_NODES or one.op not in ("placeholder", "call_function", "call_method"):
            return None
        if one.op == "placeholder" and not isinstance(value, torch.SymInt) and not _is_argument(one):
            return None
        if isinstance(value, torch.Tensor) and (value.numel() > _MOST_ELEMENTS or value.requires_grad):
            return None
        if _is_random(one) or any(_overwrites(user) for user in one.users):
            return None
        stack.extend(one.all_input_nodes)
    return [n for n in node.graph.nodes if n in found]


def _source(node: fx.Node) -> str:
    """Where Dynamo found a placeholder, as Python."""
    found = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(found, "name", "")
    return str(name() if callable(name) else name) or node.name


def _is_argument(node: fx.Node) -> bool:
    return _source(node).startswith(("L['args']", "L['kwargs']"))


def _is_random(node: fx.Node) -> bool:
    name = _name(node)
    return any(part in name for part in ("rand", "bernoulli", "multinomial", "normal", "dropout", "empty"))


def _overwrites(node: fx.Node) -> bool:
    name = _name(node)
    return "out" in node.kwargs or name == "setitem" or (name.endswith("_") and not name.endswith("__"))


def _copied(order: list[fx.Node]) -> fx.Graph:
    """The nodes alone, with nothing of the capture that they are from."""
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in order:
        made[node] = graph.node_copy(node, lambda n: made[n])
        made[node].meta = {}
        if node.op == "placeholder":
            made[node].target = _source(node)
    return graph


def _truth(graph: fx.Graph, given: dict[str, Any], size: Callable[[int], int] | None = None) -> bool:
    """Computes the one truth value of a graph.

    Arguments:
        given: what the sources are evaluated in; or, with `size`, sizes by source, which it replaces.
    """
    made: dict[fx.Node, Any] = {}
    last: Any = None
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: made[n])
        if node.op == "placeholder":
            last = eval(str(node.target), dict(given)) if size is None else size(given[str(node.target)])
        elif node.op == "call_method":
            last = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            last = node.target(*args, **kwargs)
        made[node] = last
    return bool(last)
