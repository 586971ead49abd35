"""Adds up what recovering a value would recompute besides: its evicted neighbours, for policies. Torch-free.

All of it is about roots; a view's parents and readers are its root's. What only a view's call reads, and is younger
than the content itself, is no parent: it may be made of it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import final

from tests.oracle.ledger import Ledger, Value


def parents(value: Value) -> Iterator[Value]:
    """The roots that the calls of a root and of its views read; one may come several times."""
    for tensor in (value, *value.views):
        if tensor.call is not None:
            for source in tensor.call.inputs:
                if source.root is not value and source.root.id < value.id:
                    yield source.root


def children(value: Value) -> Iterator[Value]:
    """The roots that calls would make from a root or its views; one may come several times."""
    for tensor in (value, *value.views):
        for call in tensor.readers.values():
            for output in call.outputs:
                if call.makes(output) and output.root is not value and output.root.id > value.id:
                    yield output.root


def is_gone(root: Value) -> bool:
    """Whether recovering it means running its call: what lies in host memory is as near as what is resident."""
    return root.offset_B is None and not root.on_host


def has_handle(root: Value) -> bool:
    """Whether the program can name a root or a view of it."""
    return any(tensor.alive for tensor in (root, *root.views))


def is_wanted(root: Value) -> bool:
    """Whether an evicted value that the program can name would need this one, through evicted values only.

    What lies between this value and one that is resident again is evicted and wanted by nobody.
    """
    return any(is_gone(value) and has_handle(value) for value in _region(root, children))


class AbstractNeighbourhood(abc.ABC):
    """Follows what is evicted and what is rematerialised."""

    @abc.abstractmethod
    def __init__(self, ledger: Ledger) -> None: ...

    @abc.abstractmethod
    def evicted(self, root: Value) -> None:
        """A root's bytes are gone."""

    @abc.abstractmethod
    def restored(self, root: Value) -> None:
        """A root that was gone is resident again."""

    @abc.abstractmethod
    def forgotten(self, root: Value) -> None:
        """A root left the ledger, or became a leaf: nothing will recompute it."""

    def unlinked(self, view: Value) -> None:  # noqa: B027
        """A view left the ledger before its root: what its call read is no parent of the root any more."""


@final
class Solitary(AbstractNeighbourhood):
    """Nothing: for policies that look at each value alone."""

    def __init__(self, ledger: Ledger) -> None:
        pass

    def evicted(self, root: Value) -> None:
        pass

    def restored(self, root: Value) -> None:
        pass

    def forgotten(self, root: Value) -> None:
        pass


@final
class Regions(AbstractNeighbourhood):
    """The exact neighbourhoods: all evicted values that are reached through evicted values only.

    Sums are kept per resident root, and reckoned anew after something in or at the edge of the region has come or gone.
    """

    def __init__(self, ledger: Ledger) -> None:  # noqa: ARG002
        self._ancestors_ns: dict[int, int] = {}
        self._descendants_ns: dict[int, int] = {}

    def ancestors_ns(self, root: Value) -> int:
        """Cost of the evicted values that would have to be recomputed before this one could be."""
        cost_ns = self._ancestors_ns.get(root.id)
        if cost_ns is None:
            cost_ns = self._ancestors_ns[root.id] = sum(v.cost_ns for v in _region(root, parents) if is_gone(v))
        return cost_ns

    def descendants_ns(self, root: Value) -> int:
        """Cost of the evicted values whose recomputation would need this one."""
        cost_ns = self._descendants_ns.get(root.id)
        if cost_ns is None:
            cost_ns = self._descendants_ns[root.id] = sum(v.cost_ns for v in _region(root, children) if is_gone(v))
        return cost_ns

    def evicted(self, root: Value) -> None:
        for descendant in _region(root, children):
            self._ancestors_ns.pop(descendant.id, None)
        for ancestor in _region(root, parents):
            self._descendants_ns.pop(ancestor.id, None)

    def restored(self, root: Value) -> None:
        self._ancestors_ns.pop(root.id, None)
        self._descendants_ns.pop(root.id, None)
        self.evicted(root)

    def forgotten(self, root: Value) -> None:
        self.restored(root)

    def unlinked(self, view: Value) -> None:
        for descendant in (view.root, *_region(view.root, children)):
            self._ancestors_ns.pop(descendant.id, None)
        for ancestor in _region(view, parents):
            self._descendants_ns.pop(ancestor.id, None)


def _region(root: Value, neighbours: Callable[[Value], Iterator[Value]]) -> Iterator[Value]:
    """What is reached from a root in one direction through evicted values: these, and the others at the edge."""
    seen = {root.id}
    stack = [root]
    while stack:
        for value in neighbours(stack.pop()):
            if value.id not in seen:
                seen.add(value.id)
                yield value
                if is_gone(value):
                    stack.append(value)


@final
class Classes(AbstractNeighbourhood):
    """DTR's approximation: evicted neighbours are of one class, and a class knows what it costs.

    Union-find with path compression. What is rematerialised leaves its class, which is not split: values that only it
    joined remain in one class (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021).
    """

    def __init__(self, ledger: Ledger) -> None:  # noqa: ARG002
        self._above: list[int] = []  # per node the next one towards the root of its class; that root is above itself
        self._cost_ns: list[int] = []  # of the class, at its root
        self._node: dict[int, int] = {}  # of every value that is gone

    def class_of(self, root: Value) -> int | None:
        """The class of an evicted value; None for one that is not."""
        node = self._node.get(root.id)
        return None if node is None else self._find(node)

    def class_ns(self, group: int) -> int:
        """What all values of a class cost."""
        return self._cost_ns[group]

    def neighbours_ns(self, root: Value) -> int:
        """Cost of the classes of evicted parents and children, each once."""
        groups = {self._find(self._node[v.id]) for v in _near(root) if v.id in self._node}
        return sum(self._cost_ns[group] for group in groups)

    def evicted(self, root: Value) -> None:
        node = len(self._above)
        self._above.append(node)
        self._cost_ns.append(root.cost_ns)
        self._node[root.id] = node
        for neighbour in _near(root):
            if neighbour.id in self._node:
                self._merge(self._node[neighbour.id], node)

    def restored(self, root: Value) -> None:
        self._cost_ns[self._find(self._node.pop(root.id))] -= root.cost_ns

    def forgotten(self, root: Value) -> None:
        if root.id in self._node:
            self.restored(root)

    def _find(self, node: int) -> int:
        top = node
        while self._above[top] != top:
            top = self._above[top]
        while self._above[node] != top:
            self._above[node], node = top, self._above[node]
        return top

    def _merge(self, node: int, into: int) -> None:
        lower, upper = self._find(node), self._find(into)
        if lower != upper:
            self._above[lower] = upper
            self._cost_ns[upper] += self._cost_ns[lower]


def _near(root: Value) -> Iterator[Value]:
    yield from parents(root)
    yield from children(root)
