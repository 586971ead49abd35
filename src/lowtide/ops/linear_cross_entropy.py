"""Linear + cross-entropy without the logits: a language model's largest values by far, and its floor.

| option | logits | products of matrices | numerics |
|---|---|---|---|
| from logits | whole, their gradient in chunks | 3, as in the program | exact |
| recomputed | never whole | 5 | exact |
| recomputed once | never whole | 4 | reassociated |
| gradients at once | never whole; gradients wait for the backward | 3 | reassociated |

The last one is that of Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training" (2024).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from msgspec.structs import replace

from lowtide.ir.call import Arg, Const, Items, Read
from lowtide.ir.geometry import ITEM_B, Geometry
from lowtide.ir.graph import Graph, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops import projected_loss
from lowtide.ops.arguments import are_kept, bound, passed
from lowtide.ops.base import LOSS, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.cross_entropy import LEAST_B, logits_B, spans
from lowtide.ops.loss_chain import LossChain, loss_chains, shape_of
from lowtide.ops.projection import Projection, projection
from lowtide.units import format_B

_LOG = logging.getLogger("lowtide")
_LOGITS, _DTYPE, _CHUNKS = 0, 8, 10
_BLOCKS, _LEAST_CLASSES = 64, 256
"""Chunks of classes: so many, unless they would be narrower than this."""


def _sizes(graph: Graph, recipe: Recipe) -> tuple[int, int, int, int, int]:
    """Rows, hidden size, classes, bytes of a logit, bytes of one in the log-softmax."""
    logits, hidden, matrix = (passed(graph, recipe, i) for i in range(3))
    dtype = recipe.args[_DTYPE]
    assert isinstance(dtype, Const)
    wide_B = ITEM_B[dtype.text]
    if logits is not None:
        return logits.shape[0], 0 if matrix is None else matrix.shape[0], logits.shape[1], ITEM_B[logits.dtype], wide_B
    assert hidden is not None
    assert matrix is not None
    return hidden.shape[0], hidden.shape[1], matrix.shape[1], ITEM_B[hidden.dtype], wide_B


def _flops(products: int) -> Callable[[Graph, Recipe], float]:
    """Arithmetic of so many products of hidden states and matrix, without the first where logits are given."""

    def count(graph: Graph, recipe: Recipe) -> float:
        rows, size, classes, _, _ = _sizes(graph, recipe)
        return 2.0 * (products - (recipe.args[_LOGITS] is not None)) * rows * size * classes

    return count


def _traffic_B(passes: int, outputs: int) -> Callable[[Graph, Recipe], int]:
    """Bytes of the logits so many times, and of the matrix once per chunk, twice as often as it is written."""

    def count(graph: Graph, recipe: Recipe) -> int:
        rows, size, classes, item_B, wide_B = _sizes(graph, recipe)
        chunks = recipe.args[_CHUNKS]
        assert isinstance(chunks, int)
        return passes * rows * classes * wide_B + (1 + 2 * outputs) * chunks * size * classes * item_B

    return count


def _workspace_B(over_classes: bool, sums: bool, keeps: bool) -> Callable[[Graph, Recipe], int]:
    """A chunk of logits, a few of its rows in the log-softmax's dtype, and a few numbers for each row of all."""

    def count(graph: Graph, recipe: Recipe) -> int:
        rows, size, classes, item_B, wide_B = _sizes(graph, recipe)
        chunks = recipe.args[_CHUNKS]
        assert isinstance(chunks, int)
        cuts = spans(classes, chunks, projected_loss.CLASSES) if over_classes else spans(rows, chunks)
        most, other = max((b - a for a, b in cuts), default=0) + over_classes, rows if over_classes else classes
        few = -(-(rows if over_classes else most) // projected_loss.FEW) * (most if over_classes else classes)
        rounded_B = size * classes * (4 + item_B) if sums and item_B < ITEM_B["float32"] else 0
        own_B = most * other * item_B if keeps or recipe.args[_LOGITS] is None else 0
        return own_B + 2 * few * wide_B + rounded_B + 64 * rows

    return count


def _kernel(
    run: Callable[..., object],
    products: int,
    passes: int,
    outputs: int = 0,
    over_classes: bool = False,
    keeps: bool = True,
) -> Kernel:
    """How a kernel is priced.

    Arguments:
        products: of hidden states and matrix.
        passes: over the logits.
        outputs: gradients of the matrix to which every chunk adds.
        over_classes: whether chunks are of classes.
        keeps: whether a chunk has bytes of its own even where logits are given.
    """
    return Kernel(
        run,
        flops=_flops(products),
        traffic_B=_traffic_B(passes, outputs),
        workspace_B=_workspace_B(over_classes, outputs > 0 and not over_classes, keeps),
        by_size=True,
    )


@final
@dataclass(frozen=True)
class LinearCrossEntropy(AbstractFamily):
    """The last linear layer and its loss, with both gradients, in chunks.

    Arguments:
        least_B: logits of fewer bytes are left alone.
        chunks: how many there may be; one option each.
        exact_rows: fewer of them in a chunk are not tried at level exact: products with few rows are summed in
            another order by libraries of linear algebra.
    """

    name: ClassVar[str] = "linear cross-entropy"
    kind: ClassVar[str] = LOSS
    kernels: ClassVar = {
        "linear_cross_entropy": _kernel(projected_loss.linear_cross_entropy, 1, 5, keeps=False),
        "linear_cross_entropy_input_gradient": _kernel(projected_loss.input_gradient, 2, 9),
        "linear_cross_entropy_weight_gradient": _kernel(projected_loss.weight_gradient, 2, 9, over_classes=True),
        "linear_cross_entropy_backward": _kernel(projected_loss.linear_cross_entropy_backward, 3, 9, 1),
        "linear_cross_entropy_with_gradients": _kernel(projected_loss.linear_cross_entropy_with_gradients, 3, 10, 1),
        "scaled": Kernel(projected_loss.scaled),
    }
    least_B: int = LEAST_B
    chunks: tuple[int, ...] = (4, 16, 64)
    exact_rows: int = 256

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for chain in loss_chains(builder):
            found = projection(builder, chain)
            if found is None or logits_B(chain) < self.least_B or not builder.is_free(found.recipes):
                continue
            if not are_kept(builder, chain.logits, *found.factors, chain.targets, chain.weight):
                continue
            if builder.values[chain.logits.value].leaves is not None:
                _LOG.info(
                    "the model returns the logits of its loss, %s: they are made whole, whatever the plan; return the "
                    "loss alone to do without them",
                    format_B(builder.values[chain.logits.value].size_B),
                )
            options = [
                o
                for candidate in _candidates(found, numerics)
                for o in candidate(builder, found, self._counts(chain, candidate))
            ]
            builder.group(self.kind, f"{self.name} {chain.forward.id}", found.recipes, options)

    def _counts(self, chain: LossChain, candidate: _Candidate) -> list[int]:
        """How many chunks a candidate may have: rows enough in each; fewer, if that leaves none."""
        rows = chain.shape[0]
        least = self.exact_rows if candidate in (_from_logits, _recomputed) else 1
        return [c for c in self.chunks if c * least <= rows] or [max(1, rows // least)]


_Candidate = Callable[[GraphBuilder, Projection, Sequence[int]], list[Option]]


def _candidates(found: Projection, numerics: Numerics) -> list[_Candidate]:
    """The candidates that a level admits for a projection."""
    rounds = ITEM_B[found.chain.dtype] < ITEM_B["float32"]  # a row's softmax cannot be had from two numbers
    exact = not (rounds and any(i for i, _ in found.gradients))
    candidates: list[_Candidate] = [_from_logits] if exact and found.gradients else []
    if found.keeps_logits:
        return candidates
    candidates += [_recomputed] if exact else []
    if numerics.admits(Numerics.REASSOCIATED) and found.gradients:
        candidates.append(_recomputed_once)
        if _may_come_first(found):
            candidates.append(_at_once)
    return candidates


def _may_come_first(found: Projection) -> bool:
    """Whether gradients for a loss's gradient of 1 say all: one loss, and no dtype in which 1 is too small a number."""
    upstream, hidden = found.chain.upstream, found.hidden.geometry
    alone = upstream is not None and shape_of(upstream) == () and found.chain.reduction != 0
    return alone and found.extra is None and hidden is not None and hidden.dtype != "float16"


def _from_logits(builder: GraphBuilder, found: Projection, counts: Sequence[int]) -> list[Option]:
    """The logits whole; their gradient never."""
    chunks = counts[len(counts) // 2]
    product = () if found.keeps_logits else (found.product.id,)
    recipes = _by_rows_and_classes(builder, found, found.chain.logits, chunks)
    return [Option(f"from logits, {chunks} chunks", (*product, *recipes))]


def _recomputed(builder: GraphBuilder, found: Projection, counts: Sequence[int]) -> list[Option]:
    """Logits a chunk at a time, once for each of loss, input gradient and weight gradient."""
    return [Option(f"{c} chunks, recomputed", _by_rows_and_classes(builder, found, None, c)) for c in counts]


def _by_rows_and_classes(builder: GraphBuilder, found: Projection, logits: Read | None, chunks: int) -> tuple[int, ...]:
    chain = found.chain
    bias = found.bias if logits is None else None
    factors = (found.hidden, found.matrix) if logits is None else (None, None)
    tail = (bias, chain.targets, chain.weight, *chain.constants, chunks)
    by_classes = found.weight is not None or found.offset is not None
    statistics = _statistics(builder, chain) if by_classes else ()
    reads, args = bound(logits, *factors, *tail)
    made = (chain.loss, chain.total, *statistics)
    name = "lowtide.linear_cross_entropy"
    recipes = [builder.recipe(chain.forward, name, outputs=made, reads=reads, args=args)]
    late = (chain.upstream, builder.read(chain.total), found.extra)
    known = tuple(builder.read(v) for v in statistics)
    if found.input is not None:
        reads, args = bound(logits, factors[0], found.matrix, *tail, *late, *known)
        name, outputs = "lowtide.linear_cross_entropy_input_gradient", found.input.outputs
        recipes.append(builder.recipe(found.input, name, outputs=outputs, reads=reads, args=args))
    if by_classes:
        tail = (*tail[:-1], max(1, min(_BLOCKS, chain.shape[1] // _LEAST_CLASSES)))
        wanted = (found.turned, found.weight is not None, _bias_shape(builder, found))
        reads, args = bound(logits, found.hidden, found.matrix, *tail, *late, *known, *wanted)
        recipes.append(_gradient_recipe(builder, found, "weight_gradient", reads, args, first=1))
    return tuple(recipes)


def _statistics(builder: GraphBuilder, chain: LossChain) -> tuple[int, int]:
    """Adds two values that stand for every row's softmax; returns their ids."""
    device = "cpu" if chain.logits.geometry is None else chain.logits.geometry.device
    rows = Geometry(chain.dtype, chain.shape[:1], (1,), 0, device)
    largest = builder.value(f"largest logits of {chain.forward.id}", rows)
    return largest, builder.value(f"logarithms of the sums of {chain.forward.id}", rows)


def _recomputed_once(builder: GraphBuilder, found: Projection, counts: Sequence[int]) -> list[Option]:
    """Logits a chunk at a time, once for the loss and once for all gradients."""
    chain, options = found.chain, []
    for chunks in counts:
        head = (None, *found.factors, chain.targets, chain.weight, *chain.constants, chunks)
        reads, args = bound(*head)
        name, outputs = "lowtide.linear_cross_entropy", (chain.loss, chain.total)
        forward = builder.recipe(chain.forward, name, outputs=outputs, reads=reads, args=args)
        reads, args = bound(*head, chain.upstream, builder.read(chain.total), found.extra, *_wanted(builder, found))
        backward = _gradient_recipe(builder, found, "backward", reads, args)
        options.append(Option(f"{chunks} chunks, recomputed once", (forward, backward), Numerics.REASSOCIATED))
    return options


def _at_once(builder: GraphBuilder, found: Projection, counts: Sequence[int]) -> list[Option]:
    """Logits a chunk at a time, once; gradients along with the loss, scaled in the backward."""
    chain, options = found.chain, []
    name = "lowtide.linear_cross_entropy_with_gradients"
    for chunks in counts:
        saved = {i: _waiting(builder, recipe) for i, recipe in found.gradients}
        head = (None, *found.factors, chain.targets, chain.weight, *chain.constants, chunks)
        reads, args = bound(*head, *_wanted(builder, found))
        outputs, paths = (chain.loss, *saved.values()), ((0,), *((i + 2,) for i in saved))
        forward = builder.recipe(chain.forward, name, outputs=outputs, reads=reads, args=args, paths=paths)
        backward = tuple(_scaled(builder, chain, saved[i], recipe) for i, recipe in found.gradients)
        options.append(Option(f"{chunks} chunks, gradients at once", (forward, *backward), Numerics.REASSOCIATED))
    return options


def _waiting(builder: GraphBuilder, recipe: Recipe) -> int:
    """A gradient that waits for the backward, in float32 at least."""
    own = builder.values[recipe.outputs[0]]
    assert own.geometry is not None
    dtype = own.geometry.dtype if ITEM_B[own.geometry.dtype] >= ITEM_B["float32"] else "float32"
    return builder.value(f"{own.name} for a gradient of 1", replace(own.geometry, dtype=dtype))


def _scaled(builder: GraphBuilder, chain: LossChain, saved: int, recipe: Recipe) -> int:
    """Adds what turns a gradient that waited into the program's."""
    assert chain.upstream is not None
    waited, own = builder.values[saved].geometry, builder.values[recipe.outputs[0]].geometry
    assert waited is not None
    assert own is not None
    if waited.dtype == own.dtype:
        reads, args = bound(builder.read(saved), chain.upstream)
        return builder.recipe(recipe, "aten.mul.Tensor", outputs=recipe.outputs, reads=reads, args=args)
    reads, args = bound(builder.read(saved), chain.upstream, Const("dtype", own.dtype))
    return builder.recipe(recipe, "lowtide.scaled", outputs=recipe.outputs, reads=reads, args=args)


def _gradient_recipe(
    builder: GraphBuilder, found: Projection, name: str, reads: Sequence[Read], args: Sequence[Arg], first: int = 0
) -> int:
    """Adds a recipe that makes the wanted gradients from the `first` on."""
    wanted = [(i - first, recipe) for i, recipe in found.gradients if i >= first]
    return builder.recipe(
        wanted[0][1],
        f"lowtide.linear_cross_entropy_{name}",
        outputs=[recipe.outputs[0] for _, recipe in wanted],
        reads=reads,
        args=args,
        paths=[(i,) for i, _ in wanted],
    )


def _wanted(builder: GraphBuilder, found: Projection) -> tuple[Arg, ...]:
    return found.input is not None, found.turned, found.weight is not None, _bias_shape(builder, found)


def _bias_shape(builder: GraphBuilder, found: Projection) -> Items | None:
    geometry = None if found.offset is None else builder.values[found.offset.outputs[0]].geometry
    return None if geometry is None else Items(geometry.shape)
