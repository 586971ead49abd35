"""Attention a few heads at a time: scores and probabilities never exist whole, and are recomputed in the backward.

Heads are independent, in every product, in the softmax and in all gradients. So the same operators run on fewer of
them, and bits are the same. Where there is dropout, which weights it keeps is drawn whole, as the program draws it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from msgspec.structs import replace

from lowtide.ir.call import Arg, Const, Items, Read
from lowtide.ir.geometry import ITEM_B
from lowtide.ir.graph import Effect, Graph, MiniTrace, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import are_kept, bound, passed
from lowtide.ops.attention_chain import AttentionChain, attention_chains
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.flash_attention import flash_attention, flash_attention_backward, flash_option, workspace_B
from lowtide.ops.lazy import torch
from lowtide.ops.loss_chain import shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as Dtype

_PART_B = 1 << 20
_COARSE = 8


def pieces(batches: int, heads: int, parts: int) -> Iterator[tuple[int, int, int, int]]:
    """Cuts batches times heads into about so many ranges: whole batches, or heads of one batch; [b, c) and [h, i)."""
    if parts <= batches:
        cuts = [batches * k // max(parts, 1) for k in range(parts + 1)]
        yield from ((b, c, 0, heads) for b, c in itertools.pairwise(cuts) if b < c)
        return
    each = min(heads, -(-parts // max(batches, 1)))
    cuts = [heads * k // each for k in range(each + 1)]
    yield from ((b, b + 1, h, i) for b in range(batches) for h, i in itertools.pairwise(cuts))


def leading(shape: Sequence[int]) -> tuple[int, int]:
    """Batches and heads of scores [B, H, S, T] or [N, S, T]."""
    return (shape[0], 1) if len(shape) == 3 else (shape[0], shape[1])


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention over [N, S, D], [N, D, T] and [N, T, D], N batches times heads.

    Arguments:
        mask: what is added to the scores; broadcasts to `shape`. None for nothing.
        kept: of `shape`, what dropout keeps; None without dropout.
        shape: of the scores, [B, H, S, T] or [N, S, T].
        scaling: "mul" or "div".
        safe: whether rows that are masked altogether become zeros.
        dtype: of the softmax.
        kept_scale: by which what dropout keeps is multiplied.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    kept: Tensor | None
    shape: Sequence[int]
    scaling: str | None
    factor: float
    safe: bool
    dtype: Dtype
    kept_scale: float

    def pieces(self, parts: int) -> Iterator[tuple[slice, tuple[slice, slice]]]:
        """Ranges of N, and of batches and heads."""
        batches, heads = leading(self.shape)
        for b, c, h, i in pieces(batches, heads, parts):
            yield slice(b * heads + h, (c - 1) * heads + i), (slice(b, c), slice(h, i))

    def weights(self, n: slice, where: tuple[slice, slice]) -> Tensor:
        """Probabilities of some heads, before dropout, in the softmax's dtype."""
        scores = self.scaled(torch.bmm(self.query[n], self.key[n]))
        if self.mask is not None:
            mask = self.part(self.mask.expand(*self.shape), where)
            seen = scores.view(mask.shape)
            masked = seen.add_(mask) if mask.dtype == scores.dtype else seen + mask  # of the wider dtype
            scores = masked.view(scores.shape)
        scores = scores.to(self.dtype)
        if self.safe:
            safe: Tensor = torch.ops.aten._safe_softmax(scores, -1)
            return safe
        torch.ops.aten._softmax.out(scores, -1, False, out=scores)  # a row is reduced before it is written
        return scores

    def scaled(self, scores: Tensor) -> Tensor:
        """Scores, or their gradient, scaled where they lie."""
        if self.scaling is None:
            return scores
        return scores.mul_(self.factor) if self.scaling == "mul" else scores.div_(self.factor)

    def part(self, whole: Tensor, where: tuple[slice, slice]) -> Tensor:
        """What belongs to some heads of a tensor of `shape`."""
        return (whole.unsqueeze(1) if whole.dim() == 3 else whole)[where]

    def dropped(self, weights: Tensor, where: tuple[slice, slice]) -> Tensor:
        """Probabilities in the values' dtype, after dropout."""
        weights = weights.to(self.value.dtype)
        if self.kept is None:
            return weights
        return weights.mul(self.part(self.kept, where).reshape(weights.shape)).mul_(self.kept_scale)

    def dropped_gradient(self, gradient: Tensor, where: tuple[slice, slice]) -> Tensor:
        """The gradient of probabilities from that of what dropout made of them."""
        if self.kept is None:
            return gradient
        kept = self.part(self.kept, where).reshape(gradient.shape)
        passed_on: Tensor = torch.ops.aten.native_dropout_backward(gradient, kept, self.kept_scale)
        return passed_on


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: Tensor | None,
    shape: Sequence[int],
    scaling: str | None,
    factor: float,
    safe: bool,
    dtype: Dtype,
    kept_scale: float,
    parts: int,
) -> Tensor:
    """The weighted values, [N, S, D]."""
    heads = Heads(query, key, value, mask, kept, shape, scaling, factor, safe, dtype, kept_scale)
    found = query.new_empty((query.shape[0], query.shape[1], value.shape[2]))
    for n, where in heads.pieces(parts):
        torch.bmm(heads.dropped(heads.weights(n, where), where), value[n], out=found[n])
    return found


def _attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: Tensor | None,
    shape: Sequence[int],
    scaling: str | None,
    factor: float,
    safe: bool,
    dtype: Dtype,
    kept_scale: float,
    parts: int,
    gradient: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, [N, S, D], [N, D, T] and [N, T, D]."""
    heads = Heads(query, key, value, mask, kept, shape, scaling, factor, safe, dtype, kept_scale)
    of_query, of_key, of_value = (x.new_empty(x.shape) for x in (query, key, value))
    for n, where in heads.pieces(parts):
        weights = heads.weights(n, where)
        torch.bmm(heads.dropped(weights, where).transpose(1, 2), gradient[n], out=of_value[n])
        slope = heads.dropped_gradient(torch.bmm(gradient[n], value[n].transpose(1, 2)), where).to(dtype)
        torch.ops.aten._softmax_backward_data.out(slope, weights, -1, dtype, grad_input=slope)  # summed, then written
        del weights
        slope = heads.scaled(slope.to(query.dtype))
        torch.bmm(query[n].transpose(1, 2), slope, out=of_key[n])
        torch.bmm(slope, key[n].transpose(1, 2), out=of_query[n])
        del slope
    return of_query, of_key, of_value


def _dropout_mask(shape: Sequence[int], probability: float, device: str) -> Tensor:
    """What dropout keeps, drawn as `native_dropout` draws it on a CPU."""
    return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1.0 - probability)


def _flops(products: int) -> Callable[[Graph, Recipe], float]:
    def count(graph: Graph, recipe: Recipe) -> float:
        query, key = passed(graph, recipe, 0), passed(graph, recipe, 1)
        return 0.0 if query is None or key is None else 2.0 * products * query.numel * key.shape[2]

    return count


def _traffic_B(passes: int) -> Callable[[Graph, Recipe], int]:
    """Bytes of the scores, so many times."""

    def count(graph: Graph, recipe: Recipe) -> int:
        query, key = passed(graph, recipe, 0), passed(graph, recipe, 1)
        if query is None or key is None:
            return 0
        return passes * query.shape[0] * query.shape[1] * key.shape[2] * ITEM_B[query.dtype]

    return count


def _workspace_B(copies: int) -> Callable[[Graph, Recipe], int]:
    """Bytes of the scores of the largest part, so many times."""

    def count(_graph: Graph, recipe: Recipe) -> int:
        shape, dtype, parts = recipe.args[5], recipe.args[9], recipe.args[11]
        assert isinstance(shape, Items)
        assert isinstance(dtype, Const)
        assert isinstance(parts, int)
        sizes = [n for n in shape.items if isinstance(n, int)]
        batches, heads = leading(sizes)
        most = max(((c - b) * (i - h) for b, c, h, i in pieces(batches, heads, parts)), default=0)
        return copies * most * sizes[-2] * sizes[-1] * ITEM_B[dtype.text]

    return count


@final
@dataclass(frozen=True)
class Attention(AbstractFamily):
    """Attention that a program computes in the open, in parts, or flash. Parts are exact: each head on its own.

    Arguments:
        least_B: scores of fewer bytes are left alone.
    """

    name: ClassVar[str] = "attention"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar = {
        "attention": Kernel(_attention, _flops(2), _traffic_B(6), _workspace_B(3), by_size=True),
        "attention_backward": Kernel(_attention_backward, _flops(5), _traffic_B(12), _workspace_B(4), by_size=True),
        "dropout_mask": Kernel(_dropout_mask),
        "flash_attention": Kernel(flash_attention, _flops(2), None, workspace_B),
        "flash_attention_backward": Kernel(flash_attention_backward, _flops(5), None, workspace_B),
    }
    least_B: int = _PART_B

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for chain in attention_chains(builder):
            size_B = chain.scores * ITEM_B[chain.dtype]
            if size_B < self.least_B or len(chain.shape) > 4 or not builder.is_free(chain.recipes):
                continue
            if not are_kept(builder, chain.query, chain.key, chain.value, chain.mask):
                continue
            matrices = shape_of(chain.query)[0]
            coarse = min(matrices, _COARSE)
            counts = {coarse, max(coarse, min(matrices, size_B // _PART_B))}
            kept, drawn = (None, ()) if chain.dropout is None else _drawn(builder, chain, chain.dropout)
            options = [_option(builder, chain, kept, drawn, parts) for parts in sorted(counts)]
            flash = flash_option(builder, chain) if numerics.admits(Numerics.REASSOCIATED) else None
            options += [] if flash is None else [flash]
            builder.group(self.kind, f"{self.name} {chain.output.id}", chain.recipes, options)


def _option(
    builder: GraphBuilder, chain: AttentionChain, kept: Read | None, drawn: tuple[int, ...], parts: int
) -> Option:
    probability = 0.0 if chain.dropout is None else chain.dropout.args[1]
    assert isinstance(probability, int | float)
    constants: tuple[Arg, ...] = (
        Items(chain.shape),
        *(chain.scaling or (None, 1.0)),
        chain.safe,
        Const("dtype", chain.dtype),
        0.0 if probability == 1 else 1.0 / (1.0 - probability),
        parts,
    )
    arguments = (chain.query, chain.key, chain.value, chain.mask, kept, *constants)
    reads, args = bound(*arguments)
    forward = builder.recipe(chain.output, "lowtide.attention", outputs=chain.output.outputs, reads=reads, args=args)
    if chain.backward is None:
        return Option(f"{parts} parts", (*drawn, forward))
    back = chain.backward
    reads, args = bound(*arguments, back.gradient)
    outputs = [r.outputs[0] for r in (back.query, back.key, back.value)]
    backward = builder.recipe(back.query, "lowtide.attention_backward", outputs=outputs, reads=reads, args=args)
    return Option(f"{parts} parts", (*drawn, forward, backward))


def _drawn(builder: GraphBuilder, chain: AttentionChain, dropout: Recipe) -> tuple[Read, tuple[int, ...]]:
    """Adds recipes that draw what dropout keeps, and that draw it again; returns it, and the option's."""
    _, kept, state = dropout.outputs
    name, args = "lowtide.dropout_mask", (Items(chain.shape), dropout.args[1], _device(chain))
    again = builder.recipe(dropout, name, outputs=(kept,), reads=(), args=args)
    builder.recipes[again] = replace(builder.recipes[again], state=state)
    first = builder.recipe(dropout, name, outputs=(kept, state), reads=(), args=args, paths=((),))
    trace = MiniTrace((builder.values[kept].size_B,), (0,))
    builder.recipes[first] = replace(builder.recipes[first], effect=Effect.RANDOM, state=state, trace=trace)
    return builder.read(kept), (first,)


def _device(chain: AttentionChain) -> str:
    return "cpu" if chain.query.geometry is None else chain.query.geometry.device
