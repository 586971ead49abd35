"""torch's flash attention instead of attention in the open: no scores at all, a number per query for the backward.

The arithmetic is the same, summed in another order and recomputed in the backward (Dao et al., "FlashAttention: Fast
and Memory-Efficient Exact Attention with IO-Awareness", 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowtide.ir.call import Arg, Items
from lowtide.ir.geometry import ITEM_B, Geometry
from lowtide.ir.graph import Graph, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound, passed
from lowtide.ops.attention_chain import AttentionChain
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.loss_chain import shape_of

if TYPE_CHECKING:
    from torch import Tensor


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shape: Sequence[int], scale: float
) -> tuple[Tensor, Tensor]:
    """The weighted values [N, S, D] of `Heads`, and per query the logarithm of its scores' sum of exponentials."""
    split = _split(shape)
    heads = [_by_heads(x, split) for x in (query, key.transpose(1, 2).contiguous(), value)]
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    found, log_sum = forward(*heads, 0.0, False, attn_mask=_wide_mask(mask, query, shape), scale=scale)
    return found.reshape(query.shape[0], query.shape[1], value.shape[2]), log_sum.contiguous()


def flash_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    shape: Sequence[int],
    scale: float,
    gradient: Tensor,
    found: Tensor,
    log_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, [N, S, D], [N, D, T] and [N, T, D]."""
    split = _split(shape)
    given = (gradient, query, key.transpose(1, 2).contiguous(), value, found)
    heads = [_by_heads(x, split) for x in given]
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mask = _wide_mask(mask, query, shape)
    of_query, of_key, of_value = backward(*heads, log_sum, 0.0, False, attn_mask=mask, scale=scale)
    return (
        of_query.reshape(query.shape),
        of_key.reshape(key.shape[0], key.shape[2], key.shape[1]).transpose(1, 2).contiguous(),
        of_value.reshape(value.shape),
    )


def _split(shape: Sequence[int]) -> tuple[int, int]:
    return (shape[0], 1) if len(shape) == 3 else (shape[0], shape[1])


def _by_heads(matrices: Tensor, split: tuple[int, int]) -> Tensor:
    return matrices.reshape(*split, *matrices.shape[1:])


def _wide_mask(mask: Tensor | None, query: Tensor, shape: Sequence[int]) -> Tensor | None:
    """A mask with all four dimensions, the last two whole, in the queries' dtype."""
    if mask is None:
        return None
    seen = mask.unsqueeze(1) if mask.dim() == len(shape) == 3 else mask  # of one head each
    seen = seen.to(query.dtype).reshape(*(1,) * (4 - seen.dim()), *seen.shape)
    return seen.expand(*seen.shape[:2], *shape[-2:])


def workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Copies of keys, results and gradients where they lie otherwise; sums in float32; a mask in another dtype."""
    query, key, mask = passed(graph, recipe, 0), passed(graph, recipe, 1), passed(graph, recipe, 3)
    assert query is not None
    assert key is not None
    narrow_B, masks_B = ITEM_B[query.dtype], 0 if mask is None else mask.numel * ITEM_B[query.dtype]
    return 4 * (query.numel + key.numel) * narrow_B + 4 * query.numel * ITEM_B["float32"] + masks_B + (1 << 20)


def flash_option(builder: GraphBuilder, chain: AttentionChain) -> Option | None:
    """Adds flash attention's recipes; None where it does not do what the chain does."""
    query, value = shape_of(chain.query), shape_of(chain.value)
    geometry = chain.query.geometry
    if chain.dropout is not None or geometry is None or geometry.device != "cpu" or query[2] != value[2]:
        return None
    if chain.mask is not None and len(shape_of(chain.mask)) < 2:
        return None
    kind, factor = chain.scaling or ("mul", 1.0)
    if kind == "div" and factor == 0:
        return None
    constants: tuple[Arg, ...] = (Items(chain.shape), factor if kind == "mul" else 1.0 / factor)
    arguments = (chain.query, chain.key, chain.value, chain.mask, *constants)
    reads, args = bound(*arguments)
    name, output = "lowtide.flash_attention", chain.output.outputs[0]
    if chain.backward is None:
        forward = builder.recipe(chain.output, name, outputs=(output,), reads=reads, args=args, paths=((0,),))
        return Option("flash", (forward,), Numerics.REASSOCIATED)
    batches, heads = _split(chain.shape)
    wide = "float64" if geometry.dtype == "float64" else "float32"
    each = Geometry(wide, (batches, heads, query[1]), (heads * query[1], query[1], 1), 0, geometry.device)
    log_sum = builder.value(f"logarithms of the sums of {chain.output.id}", each)
    forward = builder.recipe(chain.output, name, outputs=(output, log_sum), reads=reads, args=args)
    back = chain.backward
    reads, args = bound(*arguments, back.gradient, builder.read(output), builder.read(log_sum))
    outputs = [r.outputs[0] for r in (back.query, back.key, back.value)]
    backward = builder.recipe(back.query, f"{name}_backward", outputs=outputs, reads=reads, args=args)
    return Option("flash", (forward, backward), Numerics.REASSOCIATED)
