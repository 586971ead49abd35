"""The gradient of a weight that is both embedding and last layer: tokens' gradients are added to the layer's in parts.

The embedding's own gradient, as large as the vocabulary, never exists whole. Tokens of one part of the vocabulary are
summed by themselves, as in the whole, before they are added: bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.call import Read, Ref
from lowtide.ir.geometry import ITEM_B
from lowtide.ir.graph import Graph, Option, Recipe, Takeover
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound, passed
from lowtide.ops.base import LOSS, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.cross_entropy import LEAST_B, spans
from lowtide.ops.lazy import torch
from lowtide.ops.loss_chain import is_dense, is_whole, only, shape_of

if TYPE_CHECKING:
    from torch import Tensor

_ADD = "aten.add.Tensor"
_EMBEDDING_BACKWARD = "aten.embedding_dense_backward.default"
_NAME = "lowtide.add_embedding_gradient"
_PARTS = 16


def _add_embedding_gradient(
    weight: Tensor, rows: Tensor, index: Tensor, padding: int, parts: int, over: bool = False
) -> Tensor:
    """The gradient of a weight with that of its rows as embeddings added.

    Arguments:
        weight: the gradient so far, [V, H].
        rows: gradients of embeddings, [..., H].
        index: their tokens, [...].
        padding: a token that is left out; negative for none.
        over: whether the result may be written over `weight`.
    """
    found = weight if over else weight.clone()
    for a, b in spans(len(weight), parts):
        count = b - a  # the row behind the last one takes everything else, and nothing is done for it
        own = torch.where((index >= a) & (index < b) & (index != padding), index - a, count)
        part = torch.ops.aten.embedding_dense_backward(rows, own, count + 1, count, False)
        found[a:b].add_(part[:-1])
        del part
    return found


def _traffic_B(graph: Graph, recipe: Recipe) -> int:
    """The weight's gradient read and written, parts written and read, and tokens looked at for every part."""
    weight, rows, index = (passed(graph, recipe, i) for i in range(3))
    assert weight is not None
    assert rows is not None
    assert index is not None
    return (5 * weight.numel + 2 * rows.numel) * ITEM_B[weight.dtype] + 4 * _PARTS * index.numel * ITEM_B[index.dtype]


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    weight, index, parts = passed(graph, recipe, 0), passed(graph, recipe, 2), recipe.args[4]
    assert weight is not None
    assert index is not None
    assert isinstance(parts, int)
    most = max((b - a for a, b in spans(weight.shape[0], parts)), default=0) + 1
    return most * weight.shape[1] * ITEM_B[weight.dtype] + 3 * index.numel * ITEM_B[index.dtype]


@final
@dataclass(frozen=True)
class TiedEmbedding(AbstractFamily):
    """Embeddings' gradients added to the last layer's, over it where it dies. Exact.

    Arguments:
        least_B: weights of fewer bytes are left alone.
    """

    name: ClassVar[str] = "tied embedding"
    kind: ClassVar[str] = LOSS
    kernels: ClassVar = {
        "add_embedding_gradient": Kernel(
            _add_embedding_gradient, traffic_B=_traffic_B, workspace_B=_workspace_B, by_size=True
        )
    }
    least_B: int = LEAST_B

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for embedding in list(builder.calls(_EMBEDDING_BACKWARD)):
            add = only(builder, embedding.outputs[0], (_ADD,))
            so_far = None if add is None else _so_far(builder, embedding, add[0])
            if add is None or so_far is None or builder.values[add[0].outputs[0]].size_B < self.least_B:
                continue
            replaces = (embedding.id, add[0].id)
            if builder.is_free(replaces):
                recipe = _added(builder, embedding, add[0], so_far)
                name = f"{self.name} {embedding.id}"
                builder.group(self.kind, name, replaces, [Option("added in parts", (recipe,))])


def _so_far(builder: GraphBuilder, embedding: Recipe, add: Recipe) -> Read | None:
    """What an embedding's gradient is added to; None where that is not a matrix of the same shape, or not all it is."""
    others = [r for r in add.reads if r.value != embedding.outputs[0]]
    own = builder.values[embedding.outputs[0]].geometry
    plain = embedding.args[:2] == (Ref(0), Ref(1)) and embedding.args[4:] == (False,) and not embedding.kwargs
    if not plain or add.args != (Ref(0), Ref(1)) or add.kwargs or len(others) != 1 or own is None:
        return None
    found = others[0]
    dense = is_whole(builder, found) and is_dense(builder.values[add.outputs[0]].geometry)
    same = found.geometry is not None and found.geometry.dtype == own.dtype and shape_of(found) == own.shape
    return found if dense and same else None


def _added(builder: GraphBuilder, embedding: Recipe, add: Recipe, so_far: Read) -> int:
    """Adds the sum in parts, and the same over what it adds to; returns the first."""
    reads, args = bound(so_far, *embedding.reads, embedding.args[3], _PARTS)
    recipe = builder.recipe(add, _NAME, outputs=add.outputs, reads=reads, args=args)
    value = builder.values[so_far.value]
    inside = not value.persistent and value.arrives is None and value.leaves is None
    if inside and value.size_B == builder.values[add.outputs[0]].size_B:
        over = (Takeover(value.id, 0),)
        builder.recipe(add, _NAME, outputs=add.outputs, reads=reads, args=(*args, True), consumes=over)
    return recipe
