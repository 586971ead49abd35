"""How the gradients arrive that a captured backward is given: which there are, and how each lies in memory.

A captured backward is traced for one such state of affairs. What eager computes of a gradient depends on both: sums
over it are taken in the order of its memory, a `reshape` of it is a view or a copy, and where there is no gradient
nothing is computed at all, not even with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.device.strides import dense_strides, order_of

_NODE = "CompiledFunctionBackward"


@dataclass(frozen=True)
class GradientLayout:
    """How a gradient lies in memory, whatever its sizes.

    Arguments:
        order: its dimensions, from the one with the largest stride to the one with the smallest.
        expanded: of these, the ones along which one element is read again and again.
        strides: where there are holes between its elements; None where there are none.
    """

    order: tuple[int, ...]
    expanded: frozenset[int] = frozenset()
    strides: tuple[int, ...] | None = None

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int]) -> GradientLayout:
        """The layout of a tensor by its sizes and strides, in elements."""
        expanded = frozenset(d for d, n in enumerate(shape) if n > 1 and strides[d] == 0)
        order = order_of(shape, strides)
        layout = cls(order, expanded)
        return layout if layout.serves(shape, strides) else cls(order, expanded, tuple(strides))

    def strides_of(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Strides, in elements, of a tensor of some sizes, which may be symbolic."""
        return dense_strides(shape, self.order, self.expanded) if self.strides is None else self.strides

    def serves(self, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether a tensor of these sizes and strides lies so."""
        return 0 in shape or tuple(strides) == self.strides_of(shape)


Arrivals = tuple[GradientLayout | None, ...]  # per gradient of a captured backward; None for one that does not come


def arrivals_of(gradients: Iterable[torch.Tensor | None]) -> Arrivals:
    """How gradients have come."""
    return tuple(None if g is None else GradientLayout.of(g.shape, g.stride()) for g in gradients)


def come_as(gradients: Sequence[torch.Tensor | None], arrivals: Arrivals) -> bool:
    """Whether gradients have come as one certain arrival."""
    return all(
        (g is None) == (a is None) and (g is None or a is None or a.serves(g.shape, g.stride()))
        for g, a in zip(gradients, arrivals, strict=True)
    )


def no_zeros_for_absent(results: Iterable[Any]) -> None:
    """Lets the backward of a captured graph see which gradients there are: autograd would make zeros of the others.

    Arguments:
        results: what the graph returned; views of its outputs lead to its node as well.
    """
    found: list[Any] = []
    for result in results:
        node: Any = result.grad_fn if isinstance(result, torch.Tensor) else None
        while node is not None and node.name() != _NODE:  # the last node is that of the graph, or of an earlier one
            node = node.next_functions[0][0] if node.next_functions else None
        if node is not None:
            found.append(node)
    if found:
        max(found, key=lambda n: n._sequence_nr()).set_materialize_grads(False)
