"""Where a program computes attention in the open: scores, softmax, weighted values, and their backward.

Torch-free. `softmax(scale * Q K + mask) V` with the softmax perhaps in another dtype, and perhaps with dropout, over
batches of matrices. Found by operator names, arguments and geometry; anything else that reads what is in between rules
it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lowtide.ir.call import Const, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Recipe
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.loss_chain import is_cast, is_dense, is_whole, shape_of
from lowtide.ops.pattern import Call, Either, Match, Named, Term, Through, Variable, matches

_SAFE = "aten._safe_softmax.default"
_SCALING = {
    "aten.mul.Tensor": "mul",
    "aten.mul.Scalar": "mul",
    "aten.div.Tensor": "div",
    "aten.div.Scalar": "div",
}
Scaling = tuple[str, float]


def _is_copy(builder: GraphBuilder, recipe: Recipe) -> bool:
    """Whether a recipe copies a dense value, to another dtype or as it is: dropout that drops nothing does."""
    formats = {arg.text for _, arg in recipe.kwargs if isinstance(arg, Const)}
    cloned = recipe.op == "aten.clone.default" and recipe.args == (Ref(0),)
    return is_cast(builder, recipe) or (cloned and formats <= {"contiguous_format", "preserve_format"})


def _product(one: Term, other: Term) -> Call:
    return Call(("aten.bmm.default",), (one, other))


def _scaled(term: Term, name: str) -> Term:
    return Either((Named(name, Call(tuple(_SCALING), (term, Variable(f"{name} by")))), term))


_SCORES = _scaled(_product(Variable("query"), Variable("key")), "scaled")
_MASKED = Either((Named("masked", Call(("aten.add.Tensor",), (_SCORES, Variable("mask")))), _SCORES))
_COPIED = Through(is_cast, _MASKED, most=1)
_SOFTMAX = Either((Call((_SAFE,), (_COPIED, -1)), Call(("aten._softmax.default",), (_COPIED, -1, False))))
_KEPT = Through(_is_copy, Named("softmax", _SOFTMAX))
_DROPPED = Named("dropped", Call(("aten.native_dropout.default",), (_KEPT, Variable("probability"), True)))
_OUTPUT = _product(Named("weights", Either((_DROPPED, _KEPT))), Variable("value"))

_OF_WEIGHTS = Through(is_cast, _product(Variable("gradient"), Variable("value", any_view=True)))
_OF_DROPPED = Call(("aten.native_dropout_backward.default",), (_OF_WEIGHTS, Variable("flags"), Variable("factor")))
_OF_KEPT = Either((Named("kept", _OF_DROPPED), _OF_WEIGHTS))
_OF_SOFTMAX = Call(
    ("aten._softmax_backward_data.default",),
    (Through(is_cast, _OF_KEPT), Variable("softmax", any_view=True), -1, Variable("dtype")),
)
_OF_SCORES = Named("slopes", Through(is_cast, _scaled(Through(is_cast, _OF_SOFTMAX), "scaled back")))
_OF_QUERY = _product(_OF_SCORES, Variable("key", any_view=True))
_OF_KEY = _product(Variable("query", any_view=True), Variable("slopes", any_view=True))
_OF_VALUE = _product(Variable("weights", any_view=True), Variable("gradient"))


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
        return math.prod(self.shape)


def attention_chains(builder: GraphBuilder) -> Iterator[AttentionChain]:
    """Every attention in the open, in the program's order."""
    found: dict[int, AttentionChain] = {}
    for patterns in ((_OUTPUT,), (_OUTPUT, _OF_QUERY, _OF_KEY, _OF_VALUE)):
        for match in matches(builder, *patterns, link=is_whole):
            chain = _chain(builder, match)
            if chain is not None:
                found.setdefault(chain.output.id, chain)
    order = {r: i for i, r in enumerate(builder.graph.program)}
    yield from (found[r] for r in sorted(found, key=order.__getitem__))


def _chain(builder: GraphBuilder, match: Match) -> AttentionChain | None:
    """What a match is, if it is attention: what patterns do not say is looked at here."""
    query, key, value, mask = (match.read(name) for name in ("query", "key", "value", "mask"))
    softmax, dropout = _made(builder, match, "softmax"), _made(builder, match, "dropped")
    if query is None or key is None or value is None or softmax is None:
        return None
    geometry, scaling = softmax.reads[0].geometry, _scaling(builder, match, "scaled")
    if geometry is None or len(geometry.shape) < 3 or (match.read("scaled") is not None and scaling is None):
        return None
    masked = _made(builder, match, "masked")
    if masked is not None and (mask is None or shape_of(masked.reads[0]) != shape_of(builder.read(masked.outputs[0]))):
        return None
    if dropout is not None and (dropout.effect is not Effect.RANDOM or len(dropout.outputs) != 3):
        return None
    if not all(is_dense(builder.values[root.outputs[0]].geometry) for root in match.roots):
        return None
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
        output=match.roots[0],
        recipes=match.recipes,
    )
    return chain if len(match.roots) == 1 else _with_backward(builder, chain, match)


def _with_backward(builder: GraphBuilder, chain: AttentionChain, match: Match) -> AttentionChain | None:
    """The same chain with its backward; None where that is another one's."""
    output, of_query, of_key, of_value = match.roots
    gradient, weights = match.read("gradient"), match.read("weights")
    if gradient is None or weights is None or match.found["dtype"] != Const("dtype", chain.dtype):
        return None
    before = next(r for r in match.recipes if builder.recipes[r].reads[:1] == (gradient,) and r != output.id)
    turned = builder.recipes[before].reads[1]
    pairs = ((of_query.reads[1], chain.key), (of_key.reads[0], chain.query), (of_value.reads[0], weights))
    if not all(_is_flipped(*pair) for pair in (*pairs, (turned, chain.value))):
        return None
    if _scaling(builder, match, "scaled back") != chain.scaling or ("kept" in match.found) == (chain.dropout is None):
        return None
    recipes = tuple(r for r in match.recipes if builder.recipes[r].segment > output.segment)
    return replace(chain, backward=AttentionBackward(gradient, of_query, of_key, of_value, recipes))


def _made(builder: GraphBuilder, match: Match, name: str) -> Recipe | None:
    """The recipe that makes what is named in a match."""
    read = match.read(name)
    return None if read is None else builder.made_by(read.value)


def _scaling(builder: GraphBuilder, match: Match, name: str) -> Scaling | None:
    """The number by which what is named multiplies or divides; None if there is none."""
    recipe, factor = _made(builder, match, name), match.found.get(f"{name} by")
    if recipe is None or isinstance(factor, bool) or not isinstance(factor, int | float):
        return None
    return _SCALING[recipe.op], float(factor)


def _is_flipped(read: Read, other: Read) -> bool:
    """Whether both show the same value, one with the last two dimensions exchanged."""
    one, two = read.geometry, other.geometry
    if read.value != other.value or one is None or two is None or len(one.shape) != 3:
        return False
    turned = (two.shape[0], two.shape[2], two.shape[1]), (two.stride[0], two.stride[2], two.stride[1])
    return one == Geometry(two.dtype, *turned, two.offset, two.device)
