"""Backwards that read a saved value for its shape alone: they get the shape, and the value may die."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from lowtide.ir.call import Arg, Items, Read, Ref
from lowtide.ir.graph import Option
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.memory_order import follows

if TYPE_CHECKING:
    from torch import Tensor

_BACKWARDS = frozenset(
    {
        *(f"aten._adaptive_avg_pool{n}d_backward.default" for n in (2, 3)),
        *(f"aten.adaptive_max_pool{n}d_backward.default" for n in (2, 3)),
        *(f"aten.avg_pool{n}d_backward.default" for n in (2, 3)),
    }
)
"""Operators whose second argument is the input of a pooling; how large it was is all they ask."""


def without_input(gradient: Tensor, op: str, shape: Sequence[int], *rest: Any) -> Tensor:
    """A backward of `_BACKWARDS` on one element that stands for the whole input.

    Arguments:
        op: its name.
        shape: of the input, which lay row by row.
        rest: its arguments behind the input.
    """
    stand_in = torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(list(shape))
    result: Tensor = getattr(torch.ops.aten, op.split(".")[1]).default(gradient, stand_in, *rest)
    return result


@final
@dataclass(frozen=True)
class StandIns(AbstractFamily):
    """Pooling's gradients without its input. Exact: the same operator, which does not look."""

    name: ClassVar[str] = "stand-ins"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = {"without_input": Kernel(without_input)}

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for backward in list(builder.calls(*_BACKWARDS)):
            first, second, *rest = backward.args
            if not isinstance(first, Ref) or not isinstance(second, Ref) or backward.kwargs:
                continue
            saved = backward.reads[second.index]
            geometry, value = saved.geometry, builder.values[saved.value]
            # Elsewhere operators may copy the input before they take its shape, and other layouts would get lost.
            if geometry is None or geometry.device != "cpu" or value.persistent or value.arrives is not None:
                continue
            if not follows(geometry, range(len(geometry.shape))) or not builder.may_replace((backward.id,)):
                continue
            others: list[Read | Arg] = [backward.reads[a.index] if isinstance(a, Ref) else a for a in rest]
            reads, args = bound(backward.reads[first.index], backward.op, Items(geometry.shape), *others)
            own = builder.recipe(backward, "lowtide.without_input", outputs=backward.outputs, reads=reads, args=args)
            builder.group(self.kind, f"{self.name} {backward.id}", [backward.id], [Option("without input", (own,))])
