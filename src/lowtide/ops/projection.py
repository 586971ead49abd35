"""Where a program's logits come from, a linear layer, and what becomes of their gradient: the layer's own gradients."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lowtide.ir.call import Items, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Recipe
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.loss_chain import LossChain, as_matrix, is_dense, is_whole, shape_of

_MM, _ADDMM, _SUM, _ADD = "aten.mm.default", "aten.addmm.default", "aten.sum.dim_IntList", "aten.add.Tensor"


@dataclass(frozen=True, slots=True)
class Projection:
    """A loss chain with the product that makes its logits, and what is made of their gradient.

    Arguments:
        product: the recipe that makes the logits.
        hidden, matrix, bias: [N, H], [H, V] and [V], as it reads them.
        extra: another gradient of the logits, [N, V], which is added; None if there is none.
        input, weight, offset: recipes that make the gradients of hidden, matrix and bias; None where not wanted.
        turned: whether the weight's gradient is [H, V] rather than [V, H].
        keeps_logits: whether the logits are wanted besides, so that they have to be made whole.
        recipes: of the program, all of these and the chain's.
    """

    chain: LossChain
    product: Recipe
    hidden: Read
    matrix: Read
    bias: Read | None
    extra: Read | None
    input: Recipe | None
    weight: Recipe | None
    offset: Recipe | None
    turned: bool
    keeps_logits: bool
    recipes: tuple[int, ...]

    @property
    def factors(self) -> tuple[Read, Read, Read | None]:
        """Hidden states, matrix and bias."""
        return self.hidden, self.matrix, self.bias

    @property
    def gradients(self) -> tuple[tuple[int, Recipe], ...]:
        """Of hidden states, matrix and bias, those that are wanted, by position."""
        all_three = enumerate((self.input, self.weight, self.offset))
        return tuple((i, recipe) for i, recipe in all_three if recipe is not None)


def projection(builder: GraphBuilder, chain: LossChain) -> Projection | None:
    """The product in front of a loss chain, with its gradients; None where it has another form."""
    product = builder.made_by(chain.logits.value)
    if product is None or product.op not in (_MM, _ADDMM) or product.kwargs or not is_whole(builder, chain.logits):
        return None
    if product.args != tuple(Ref(i) for i in range(len(product.reads))):
        return None
    *bias, hidden, matrix = product.reads
    shape = (shape_of(hidden)[0], shape_of(matrix)[1])
    if shape != chain.shape or (bias and shape_of(bias[0]) != shape[1:]):
        return None
    own = {r for r in builder.readers[chain.logits.value] if r not in chain.recipes}
    keeps_logits = bool(own) or builder.values[chain.logits.value].leaves is not None
    found = Projection(
        chain,
        product,
        hidden,
        matrix,
        bias[0] if bias else None,
        None,
        None,
        None,
        None,
        False,
        keeps_logits,
        chain.recipes,
    )
    return _with_product(found) if chain.gradient is None else _with_gradients(builder, found)


def _with_product(found: Projection) -> Projection:
    """With the product among what is replaced, unless the logits are kept."""
    if found.keeps_logits:
        return found
    return dataclasses.replace(found, recipes=(found.product.id, *found.recipes))


def _with_gradients(builder: GraphBuilder, found: Projection) -> Projection | None:
    """With what is made of the logits' gradient; None if anything else is."""
    gradient = found.chain.gradient
    assert gradient is not None
    readers = [builder.recipes[r] for r in builder.readers.get(gradient, [])]
    if len(readers) == 1 and readers[0].op == _ADD and builder.values[gradient].leaves is None:
        extra = _other(builder, readers[0], gradient, found.chain.shape)
        if extra is None:
            return None
        found = dataclasses.replace(found, extra=extra, recipes=(*found.recipes, readers[0].id))
        gradient = readers[0].outputs[0]
        readers = [builder.recipes[r] for r in builder.readers.get(gradient, [])]
    if builder.values[gradient].leaves is not None or not readers or not is_dense(builder.values[gradient].geometry):
        return None
    for recipe in readers:
        more = _gradient(builder, found, recipe, gradient)
        if more is None:
            return None
        found = dataclasses.replace(more, recipes=(*more.recipes, recipe.id))
    return _with_product(found)


def _other(builder: GraphBuilder, add: Recipe, gradient: int, shape: tuple[int, int]) -> Read | None:
    """What is added to the logits' gradient, as a matrix; None if it is not of their shape."""
    others = [r for r in add.reads if r.value != gradient]
    if add.args != (Ref(0), Ref(1)) or add.kwargs or len(others) != 1 or others[0].views:
        return None
    geometry = builder.values[others[0].value].geometry
    made = builder.values[add.outputs[0]].geometry
    if not is_dense(geometry) or geometry is None or made is None or geometry.shape != made.shape:
        return None
    return as_matrix(builder, others[0].value, *shape) if geometry.numel == shape[0] * shape[1] else None


def _gradient(builder: GraphBuilder, found: Projection, recipe: Recipe, gradient: int) -> Projection | None:
    """With one more gradient that a recipe makes of the logits'; None if it makes something else."""
    rows, classes = found.chain.shape
    if len(recipe.outputs) != 1 or recipe.kwargs or not is_dense(builder.values[recipe.outputs[0]].geometry):
        return None
    if recipe.op == _SUM and found.offset is None and found.bias is not None:
        whole = recipe.args[:2] == (Ref(0), Items((0,))) and is_whole(builder, recipe.reads[0])
        return (
            dataclasses.replace(found, offset=recipe)
            if whole and shape_of(recipe.reads[0]) == (rows, classes)
            else None
        )
    if recipe.op != _MM or recipe.args != (Ref(0), Ref(1)):
        return None
    left, right = recipe.reads
    if left.value == gradient and left.geometry == _dense((rows, classes), left.geometry):
        same = right.value == found.matrix.value and right.geometry == _flipped(found.matrix.geometry)
        return dataclasses.replace(found, input=recipe) if same and found.input is None else None
    if found.weight is not None:
        return None
    if left.value == gradient and _flipped(left.geometry) == _dense((rows, classes), left.geometry):
        return dataclasses.replace(found, weight=recipe) if _is_same(right, found.hidden) else None
    if right.value == gradient and right.geometry == _dense((rows, classes), right.geometry):
        same = left.value == found.hidden.value and left.geometry == _flipped(found.hidden.geometry)
        return dataclasses.replace(found, weight=recipe, turned=True) if same else None
    return None


def _is_same(read: Read, other: Read) -> bool:
    return read.value == other.value and read.geometry == other.geometry


def _dense(shape: tuple[int, int], like: Geometry | None) -> Geometry | None:
    return None if like is None else Geometry(like.dtype, shape, (shape[1], 1), 0, like.device)


def _flipped(geometry: Geometry | None) -> Geometry | None:
    """The geometry of a transposed matrix."""
    if geometry is None:
        return None
    return Geometry(geometry.dtype, geometry.shape[::-1], geometry.stride[::-1], geometry.offset, geometry.device)
