"""Where a program computes attention in the open: scores, softmax, weighted values, and their backward.

Torch-free. `softmax(scale * Q K + mask) V` with the softmax perhaps in another dtype, and perhaps with dropout, over
batches of matrices. Found by operator names, arguments and geometry; anything else that reads what is in between rules
it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.ir.call import Arg, Const, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Recipe
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.loss_chain import is_cast, is_dense, is_whole, only, shape_of

_BMM = "aten.bmm.default"
_CLONE = "aten.clone.default"
_SAFE = "aten._safe_softmax.default"
_SOFTMAX = "aten._softmax.default"
_SOFTMAX_BACKWARD = "aten._softmax_backward_data.default"
_DROPOUT = "aten.native_dropout.default"
_DROPOUT_BACKWARD = "aten.native_dropout_backward.default"
_SCALING = {
    "aten.mul.Tensor": "mul",
    "aten.mul.Scalar": "mul",
    "aten.div.Tensor": "div",
    "aten.div.Scalar": "div",
}
_ADD = "aten.add.Tensor"
Scaling = tuple[str, float]


@dataclass(frozen=True, slots=True)
class AttentionBackward:
    """The gradients of attention as a program makes them.

    Arguments:
        gradient: of the output, [N, S, D].
        query, key, value: recipes that make the gradients of [N, S, D], [N, D, T] and [N, T, D].
    """

    gradient: Read
    query: Recipe
    key: Recipe
    value: Recipe
    recipes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionChain:
    """Attention as a program has it.

    Arguments:
        query, key, value: [N, S, D], [N, D, T] and [N, T, D], as the products read them.
        shape: of the scores where they are masked, [..., S, T]; the leading extents multiply to N.
        scaling: "mul" or "div" with a number; None where nothing is scaled.
        mask: added to the scores, or None; it broadcasts to `shape`.
        safe: whether rows that are masked altogether become zeros.
        dtype: of the softmax.
        dropout: the random recipe, or None.
        output: the recipe of the last product.
        recipes: of the program, all that the chain is made of.
    """

    query: Read
    key: Read
    value: Read
    shape: tuple[int, ...]
    scaling: Scaling | None
    mask: Read | None
    safe: bool
    dtype: str
    dropout: Recipe | None
    output: Recipe
    recipes: tuple[int, ...]
    backward: AttentionBackward | None = None

    @property
    def scores(self) -> int:
        """How many there are."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


def attention_chains(builder: GraphBuilder) -> Iterator[AttentionChain]:
    """Every attention in the open, in the program's order."""
    for softmax in list(builder.calls(_SAFE, _SOFTMAX)):
        chain = _forward(builder, softmax)
        if chain is not None:
            yield chain


def _forward(builder: GraphBuilder, softmax: Recipe) -> AttentionChain | None:
    geometry = softmax.reads[0].geometry
    expected = (Ref(0), -1) if softmax.op == _SAFE else (Ref(0), -1, False)
    if softmax.args != expected or softmax.kwargs or geometry is None or len(geometry.shape) < 3:
        return None
    before = _before(builder, softmax)
    after = None if before is None else _after(builder, softmax)
    if before is None or after is None:
        return None
    product, scaling, mask, earlier = before
    output, dropout, weights, later = after
    query, key = product.reads
    value = output.reads[1]
    chain = AttentionChain(
        query=query,
        key=key,
        value=value,
        shape=geometry.shape,
        scaling=scaling,
        mask=mask,
        safe=softmax.op == _SAFE,
        dtype=geometry.dtype,
        dropout=dropout,
        output=output,
        recipes=(*earlier, softmax.id, *later),
    )
    if not is_dense(builder.values[output.outputs[0]].geometry):
        return None
    readers = {builder.recipes[r].op for r in builder.readers[softmax.outputs[0]]}
    if _SOFTMAX_BACKWARD not in readers:
        return chain
    return _with_backward(builder, chain, softmax, weights)


def _before(
    builder: GraphBuilder, softmax: Recipe
) -> tuple[Recipe, Scaling | None, Read | None, tuple[int, ...]] | None:
    """What leads to a softmax from a product of batches: the product, scaling, mask and all recipes."""
    scaling: Scaling | None = None
    mask: Read | None = None
    found: list[int] = []
    reader, read = softmax, softmax.reads[0]
    stage = 0  # a copy, then a mask, then a scaling may come before the product
    while True:
        maker = builder.made_by(read.value)
        if maker is None or not is_whole(builder, read) or only(builder, read.value, (reader.op,)) is None:
            return None
        found.insert(0, maker.id)
        if maker.op == _BMM and maker.args == (Ref(0), Ref(1)):
            return maker, scaling, mask, tuple(found)
        if stage < 1 and is_cast(builder, maker):
            stage, reader, read = 1, maker, maker.reads[0]
        elif stage < 2 and maker.op == _ADD and maker.args == (Ref(0), Ref(1)) and not maker.kwargs:
            mask = maker.reads[1]
            if mask.value == read.value or shape_of(maker.reads[0]) != shape_of(read):
                return None
            stage, reader, read = 2, maker, maker.reads[0]
        elif stage < 3 and (scaling := scaling_of(maker)) is not None:
            stage, reader, read = 3, maker, maker.reads[0]
        else:
            return None


def _is_copy(recipe: Recipe) -> bool:
    """Whether a recipe copies a dense value as it is: dropout that drops nothing does."""
    formats = {arg.text for _, arg in recipe.kwargs if isinstance(arg, Const)}
    return recipe.op == _CLONE and recipe.args == (Ref(0),) and formats <= {"contiguous_format", "preserve_format"}


def scaling_of(recipe: Recipe) -> Scaling | None:
    """The number by which a recipe multiplies or divides; None if it does something else."""
    factor: Arg = recipe.args[1] if len(recipe.args) == 2 else None
    if recipe.op not in _SCALING or recipe.args[0] != Ref(0) or recipe.kwargs or isinstance(factor, bool):
        return None
    return (_SCALING[recipe.op], float(factor)) if isinstance(factor, int | float) else None


def _after(builder: GraphBuilder, softmax: Recipe) -> tuple[Recipe, Recipe | None, int, tuple[int, ...]] | None:
    """What leads from a softmax to the last product: it, the dropout, the value that it reads, and all recipes."""
    value, dropout = softmax.outputs[0], None
    found: list[int] = []
    while True:
        if builder.values[value].leaves is not None or not is_dense(builder.values[value].geometry):
            return None
        readers = [builder.recipes[r] for r in builder.readers.get(value, [])]
        early = [r for r in readers if r.segment == softmax.segment]
        if len(early) != 1 or not is_whole(builder, early[0].reads[0]) or early[0].reads[0].value != value:
            return None
        following = early[0]
        found.append(following.id)
        if following.op == _BMM and following.args == (Ref(0), Ref(1)):
            return following, dropout, value, tuple(found)
        if dropout is None and following.op == _DROPOUT and following.effect is Effect.RANDOM:
            if following.args[0] != Ref(0) or following.args[2] is not True or len(following.outputs) != 3:
                return None
            dropout = following
        elif dropout is not None or not (is_cast(builder, following) or _is_copy(following)):
            return None
        value = following.outputs[0]


def _with_backward(
    builder: GraphBuilder, chain: AttentionChain, softmax: Recipe, weights: int
) -> AttentionChain | None:
    """The same chain with its backward; None where that has another form."""
    late = [builder.recipes[r] for r in builder.readers[weights] if builder.recipes[r].segment > softmax.segment]
    of_value = next((r for r in late if r.op == _BMM and _is_flipped(r.reads[0], chain.output.reads[0])), None)
    if of_value is None or len(late) != 1 + (weights == softmax.outputs[0]):
        return None
    gradient = of_value.reads[1]
    after = (builder.recipes[r] for r in builder.readers[gradient.value])
    first = next(
        (r for r in after if r.op == _BMM and r.reads[0] == gradient and _is_flipped(r.reads[1], chain.value)), None
    )
    if first is None:
        return None
    found, scaling, softmax_backward = [of_value.id, first.id], None, None
    value, dropped = first.outputs[0], chain.dropout is None
    while True:
        if builder.values[value].leaves is not None or not is_dense(builder.values[value].geometry):
            return None
        readers = [builder.recipes[r] for r in builder.readers.get(value, [])]
        if softmax_backward is not None and len(readers) == 2:
            break
        if len(readers) != 1 or not is_whole(builder, readers[0].reads[0]) or readers[0].reads[0].value != value:
            return None
        step = readers[0]
        if not dropped and step.op == _DROPOUT_BACKWARD and step.args[:2] == (Ref(0), Ref(1)):
            dropped = True
        elif step.op == _SOFTMAX_BACKWARD and dropped and step.reads[1].value == softmax.outputs[0]:
            if step.args != (Ref(0), Ref(1), -1, Const("dtype", chain.dtype)):
                return None
            softmax_backward = step
        elif softmax_backward is not None and scaling is None and (scaling := scaling_of(step)) is not None:
            pass
        elif not is_cast(builder, step):
            return None
        found.append(step.id)
        value = step.outputs[0]
    of_key = next((r for r in readers if r.op == _BMM and _is_flipped(r.reads[0], chain.query)), None)
    of_query = next((r for r in readers if r.op == _BMM and _is_flipped(r.reads[1], chain.key)), None)
    if of_key is None or of_query is None or of_key.reads[1].value != value or of_query.reads[0].value != value:
        return None
    if scaling != chain.scaling:
        return None
    outputs = (of_query.outputs[0], of_key.outputs[0], of_value.outputs[0])
    if not all(is_dense(builder.values[v].geometry) for v in outputs):
        return None
    found += [of_key.id, of_query.id]
    backward = AttentionBackward(gradient, of_query, of_key, of_value, tuple(found))
    return dataclasses.replace(chain, recipes=(*chain.recipes, *found), backward=backward)


def _is_flipped(read: Read, other: Read) -> bool:
    """Whether both show the same value, one with the last two dimensions exchanged."""
    one, two = read.geometry, other.geometry
    if read.value != other.value or one is None or two is None or len(one.shape) != 3:
        return False
    turned = (two.shape[0], two.shape[2], two.shape[1]), (two.stride[0], two.stride[2], two.stride[1])
    return one == Geometry(two.dtype, *turned, two.offset, two.device)
