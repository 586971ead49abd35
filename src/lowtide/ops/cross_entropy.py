"""Cross-entropy from logits in chunks of rows: neither log-probabilities nor their gradient exist whole.

Every chunk runs torch's own operators, whose rows do not depend on each other. Losses of rows are summed by torch's
own sum, in its order: it is given a matrix of one column. So bits are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.call import Items
from lowtide.ir.geometry import ITEM_B
from lowtide.ir.graph import Graph, Option, Recipe, Takeover
from lowtide.ir.layout import SMALL_B
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import are_kept, bound, passed
from lowtide.ops.base import LOSS, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.loss_chain import LossChain, loss_chains

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as Dtype

LEAST_B = 1 << 20
"""Logits of fewer bytes are not worth the planner's time."""
_CHUNK_B = 1 << 22
_MEAN, _SUM = 1, 2
_IGNORED = -100


def spans(extent: int, chunks: int, unit: int = 16) -> Iterator[tuple[int, int]]:
    """Cuts a range into near-equal pieces that begin at multiples of a unit, if it is long enough for that.

    Vectors, and tiles of registers, then cover what they cover in the whole.
    """
    unit = unit if extent >= unit * chunks else 1
    cuts = [extent * k // chunks // unit * unit for k in range(chunks)] + [extent]
    return ((a, b) for a, b in itertools.pairwise(cuts) if a < b)


@dataclass(frozen=True, slots=True)
class Rows:
    """What the loss does with the rows of a matrix of log-probabilities.

    Arguments:
        targets: [N].
        weight: of classes, or None.
        upstream: the loss's gradient, [] or [N]; in the backward only.
        total: the sum of weights, []; in the backward only.
        kept: as `LossChain.kept`; rows that are not kept are ignored, and no part of the sum.
    """

    targets: Tensor
    weight: Tensor | None
    reduction: int
    ignore_index: int
    upstream: Tensor | None = None
    total: Tensor | None = None
    kept: Sequence[int] | None = None

    @classmethod
    def of(
        cls,
        targets: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
        kept: Sequence[int] | None,
        upstream: Tensor | None = None,
        total: Tensor | None = None,
    ) -> Rows:
        """With a target for every row, where only those that are kept have one."""
        if kept is not None:
            length, first, last = kept
            whole = targets.new_full((len(targets) // max(last - first, 1), length), ignore_index)
            whole[:, first:last] = targets.view(-1, last - first)
            targets = whole.view(-1)
        return cls(targets, weight, reduction, ignore_index, upstream, total, kept)

    def selected(self, numbers: Tensor) -> Tensor:
        """Of one number per row, those of rows that are kept."""
        if self.kept is None:
            return numbers
        length, first, last = self.kept
        return numbers.view(-1, length)[:, first:last].reshape(-1)

    def picked(self, log_p: Tensor, a: int, b: int) -> Tensor:
        """Of rows a to b, the weighted log-probabilities of the targets; 0 for ignored ones."""
        loss = torch.ops.aten.nll_loss_forward
        losses: Tensor = loss(log_p, self.targets[a:b], self.weight, 0, self.ignore_index)[0]
        return losses.neg_()

    def reduced(self, picked: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the sum of weights, from what all rows picked."""
        loss = torch.ops.aten.nll_loss_forward
        if self.reduction not in (_MEAN, _SUM):
            return picked.neg(), picked.new_zeros(())
        one, picked = self.selected(self.single()), self.selected(picked)
        if self.weight is None:
            value, total = loss(picked.unsqueeze(1), one, None, self.reduction, _IGNORED)
            return value, total
        value, _ = loss(picked.unsqueeze(1), one, None, _SUM, _IGNORED)
        total, _ = loss(self.selected(self.weights()).neg_().unsqueeze(1), one, None, _SUM, _IGNORED)
        return (value / total if self.reduction == _MEAN else value), total

    def gradient(self, log_p: Tensor, a: int, b: int) -> Tensor:
        """The logits' gradient in rows a to b, over their log-probabilities."""
        slope = self.slope(log_p, self.targets[a:b], self.weight, self.ignore_index, a, b)
        softmax = torch.ops.aten._log_softmax_backward_data.out
        softmax(slope, log_p, 1, log_p.dtype, out=log_p)  # element by element, once a row of the slope is summed
        return log_p

    def slope(
        self, log_p: Tensor, targets: Tensor, weight: Tensor | None, ignore_index: int, a: int = 0, b: int | None = None
    ) -> Tensor:
        """The gradient of log-probabilities: not 0 at targets alone."""
        upstream = self.upstream
        if upstream is not None and upstream.dim():
            upstream = upstream[a:b]
        backward = torch.ops.aten.nll_loss_backward
        slope: Tensor = backward(upstream, log_p, targets, weight, self.reduction, ignore_index, self.total)
        return slope

    def single(self) -> Tensor:
        """Targets in a matrix of one column: 0, or ignored."""
        return torch.where(self.targets == self.ignore_index, _IGNORED, 0)

    def weights(self) -> Tensor:
        """Per row, the weight of its target; anything where that is ignored."""
        assert self.weight is not None
        return self.weight[torch.where(self.targets == self.ignore_index, 0, self.targets)]


def log_softmax(logits: Tensor) -> Tensor:
    """Turns rows of logits into log-probabilities where they lie."""
    torch.ops.aten._log_softmax.out(logits, 1, False, out=logits)  # a row is reduced before it is written
    return logits


def _cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
) -> tuple[Tensor, Tensor]:
    """Loss and sum of weights."""
    rows = Rows.of(targets, weight, reduction, ignore_index, kept)
    picked = logits.new_empty(logits.shape[0], dtype=dtype)
    for a, b in spans(logits.shape[0], chunks):
        picked[a:b] = rows.picked(log_softmax(logits[a:b].to(dtype, copy=True)), a, b)
    return rows.reduced(picked)


def _cross_entropy_backward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
    upstream: Tensor,
    total: Tensor,
    shape: Sequence[int],
    over: bool = False,
) -> Tensor:
    """The logits' gradient, in their own dtype; over them, if they are not wanted any more."""
    rows = Rows.of(targets, weight, reduction, ignore_index, kept, upstream, total)
    gradient = logits if over else torch.empty_like(logits)
    for a, b in spans(logits.shape[0], chunks):
        gradient[a:b] = rows.gradient(log_softmax(logits[a:b].to(dtype, copy=True)), a, b)
    return gradient.view(shape)


def _chunk_B(graph: Graph, recipe: Recipe) -> int:
    """Log-probabilities and gradient of the largest chunk."""
    logits = passed(graph, recipe, 0)
    chunks, dtype = recipe.args[7], recipe.args[5]
    assert logits is not None
    assert isinstance(chunks, int)
    rows = max((b - a for a, b in spans(logits.shape[0], chunks)), default=0)
    return 2 * rows * logits.shape[1] * ITEM_B[getattr(dtype, "text", "float32")] + 16 * logits.shape[0]


def traffic(passes: int) -> Callable[[Graph, Recipe], int]:
    """Bytes of the logits, read or written so many times."""

    def count(graph: Graph, recipe: Recipe) -> int:
        logits = passed(graph, recipe, 0)
        return passes * (0 if logits is None else logits.numel * ITEM_B[logits.dtype])

    return count


@final
@dataclass(frozen=True)
class CrossEntropy(AbstractFamily):
    """Loss and gradient from the logits alone; the gradient over them, where they die there. Exact.

    Arguments:
        least_B: logits of fewer bytes are left alone.
    """

    name: ClassVar[str] = "cross-entropy"
    kind: ClassVar[str] = LOSS
    kernels: ClassVar = {
        "cross_entropy": Kernel(_cross_entropy, traffic_B=traffic(4), workspace_B=_chunk_B),
        "cross_entropy_backward": Kernel(_cross_entropy_backward, traffic_B=traffic(8), workspace_B=_chunk_B),
    }
    least_B: int = LEAST_B

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for chain in loss_chains(builder):
            kept = are_kept(builder, chain.logits, chain.targets, chain.weight)
            if not kept or not builder.is_free(chain.recipes) or logits_B(chain) < self.least_B:
                continue
            recipes = from_logits(builder, chain)
            builder.group(self.kind, f"{self.name} {chain.forward.id}", chain.recipes, [Option("in chunks", recipes)])


def logits_B(chain: LossChain) -> int:
    """Bytes of the logits in the dtype in which their log-softmax is taken."""
    rows, classes = chain.shape
    return rows * classes * ITEM_B[chain.dtype]


def from_logits(builder: GraphBuilder, chain: LossChain) -> tuple[int, ...]:
    """Adds recipes that make the chain's loss and gradient from its logits; returns the option's."""
    chunks = min(max(1, logits_B(chain) // _CHUNK_B), max(1, chain.shape[0]))
    arguments = (chain.logits, chain.targets, chain.weight, *chain.constants, chunks)
    reads, args = bound(*arguments)
    made = (chain.loss, chain.total)
    forward = builder.recipe(chain.forward, "lowtide.cross_entropy", outputs=made, reads=reads, args=args)
    if chain.backward is None or chain.gradient is None:
        return (forward,)
    name, outputs = "lowtide.cross_entropy_backward", (chain.gradient,)
    reads, args = bound(*arguments, chain.upstream, builder.read(chain.total), _shape(builder, chain.gradient))
    backward = builder.recipe(chain.backward, name, outputs=outputs, reads=reads, args=args)
    logits, gradient = builder.values[chain.logits.value], builder.values[chain.gradient]
    inside = not logits.persistent and logits.arrives is None and logits.leaves is None
    large = logits.size_B == gradient.size_B >= SMALL_B
    if inside and large and gradient.leaves is None:
        over = (Takeover(logits.id, 0),)
        builder.recipe(chain.backward, name, outputs=outputs, reads=reads, args=(*args, True), consumes=over)
    return forward, backward


def _shape(builder: GraphBuilder, value: int) -> Items:
    geometry = builder.values[value].geometry
    assert geometry is not None
    return Items(geometry.shape)
