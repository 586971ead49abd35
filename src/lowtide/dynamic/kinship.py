"""What recovering a value would drag in: what policies know of its evicted neighbours. Torch-free.

All of it is about roots; a view's parents and readers are its root's.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import final

from lowtide.dynamic.ledger import Ledger, Value


def parents(value: Value) -> Iterator[Value]:
    """The roots that the calls of a root and of its views read; one may come several times."""
    for tensor in (value, *value.views):
        if tensor.call is not None:
            for source in tensor.call.inputs:
                if source.root is not value:
                    yield source.root


def children(value: Value) -> Iterator[Value]:
    """The roots that calls would make from a root or its views; one may come several times."""
    for tensor in (value, *value.views):
        for call in tensor.readers.values():
            for output in call.outputs:
                if call.makes(output) and output.root is not value:
                    yield output.root


def is_gone(root: Value) -> bool:
    """Whether recovering it means running its call: what lies in host memory is as near as what is resident."""
    return root.offset_B is None and not root.on_host


class AbstractKinship(abc.ABC):
    """Follows what is evicted and what comes back."""

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
        """A root left the ledger, or became a leaf: nothing will bring it back."""


@final
class Solitary(AbstractKinship):
    """Nothing: for policies that look at each value alone."""

    def __init__(self, ledger: Ledger) -> None:
        pass

    def evicted(self, root: Value) -> None:
        pass

    def restored(self, root: Value) -> None:
        pass

    def forgotten(self, root: Value) -> None:
        pass
