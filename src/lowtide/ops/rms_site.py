"""RMS norm in a graph: torch has no operator of that name on the CPU, so it is a chain, and its backward another.

Forward, whoever writes it: r = rsqrt(mean(x ** 2) + eps), xhat = x * r, y = xhat * w. Backward, as autograd derives it:
g = dy * w, dx = g * r + (sum(g * x) * -0.5 * r ** 3) / width * (x ** 1 * 2), dw = sum(dy * xhat). Where x is read by
others, too, as that of a residual block is, what came from them is added to g * r first.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.call import Arg, Items, Read
from lowtide.ir.graph import Recipe
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.norm_site import is_contiguous
from lowtide.ops.pattern import Call, Either, Match, Named, Term, Variable, matches

_X, _RSTD, _GRADIENT, _XHAT = Variable("x"), Variable("rstd"), Variable("gradient"), Variable("xhat")


def _product(one: Term, other: Term, *, shared: bool = False) -> Call:
    return Call(("aten.mul.Tensor",), (one, other), commutes=True, shared=shared)


def _sum(one: Term, other: Term) -> Call:
    return Call(("aten.add.Tensor",), (one, other), commutes=True)


def _scaled(term: Term, factor: float) -> Call:
    return Call(("aten.mul.Scalar",), (term, factor))


def _power(term: Term, exponent: float) -> Call:
    return Call(("aten.pow.Tensor_Scalar",), (term, exponent))


def _total(term: Term, dims: str) -> Call:
    return Call(("aten.sum.dim_IntList",), (term, Variable(dims), True))


_MEAN = Call(("aten.mean.dim",), (_power(_X, 2), Variable("averaged"), True))
_SHIFTED = Call(("aten.add.Scalar", "aten.add.Tensor"), (_MEAN, Variable("eps")))
_ROOT = Named("rstd", Call(("aten.rsqrt.default",), (_SHIFTED,), shared=True))
_DIRECT = Named("direct", _product(_GRADIENT, _ROOT))
_SLOPE = _product(_scaled(_total(_product(_GRADIENT, _X), "summed"), -0.5), _power(_RSTD, 3))
_INPUT_GRADIENT = _sum(
    Either((_DIRECT, _sum(_DIRECT, Variable("added")))),
    _product(Call(("aten.div.Scalar",), (_SLOPE, Variable("width"))), _scaled(_power(_X, 1.0), 2.0)),
)
"""g * r + sum(g * x) * -0.5 * r ** 3 / width * (x ** 1 * 2), with what came to x from others added to g * r."""
_SCALE_GRADIENT = _total(_product(Variable("outer"), Named("xhat", _product(_X, _RSTD, shared=True))), "columns")
_SCALED_NORMAL = _product(_XHAT, Variable("weight"))


@dataclass(frozen=True, slots=True)
class RmsSite:
    """The chain that makes the input's gradient, and what it starts from.

    Arguments:
        gradient: of xhat.
        added: what came to x from other readers; None if nothing is added to it here.
        recipes: that only lead to `result`, in program order.
    """

    x: Read
    rstd: Read
    gradient: Read
    added: Read | None
    width: int
    recipes: tuple[int, ...]
    result: Recipe


@dataclass(frozen=True, slots=True)
class ScaledSite:
    """The chain with the scales before it.

    Arguments:
        outer: gradient of y.
        recipes: that only lead to the input's gradient and to that of the scales, in program order.
        shares: those of them that are no part of the inner chain.
    """

    inner: RmsSite
    forward: Recipe
    y: Read
    weight: Read
    outer: Read
    scale_gradient: int
    recipes: tuple[int, ...]
    shares: tuple[int, ...]


def rms_sites(builder: GraphBuilder) -> list[RmsSite]:
    """Every backward chain of an RMS norm; see the module. O(program)."""
    found: dict[int, RmsSite] = {}
    for match in matches(builder, _INPUT_GRADIENT):
        site = _site(builder, match)
        if site is not None:
            found.setdefault(site.result.id, site)
    return list(found.values())


def _site(builder: GraphBuilder, match: Match) -> RmsSite | None:
    """The chain that a match is, if it is over the last dimension of tensors that lie in order."""
    x, rstd, gradient, added = (match.read(name) for name in ("x", "rstd", "gradient", "added"))
    if x is None or rstd is None or gradient is None or x.geometry is None or rstd.views:
        return None
    width, last = x.geometry.shape[-1], (Items((-1,)), Items((len(x.geometry.shape) - 1,)))
    direct = match.read("direct")
    if match.found["averaged"] not in last or match.found["summed"] not in last or match.found["width"] != width:
        return None
    if isinstance(match.found["eps"], Read) or (added is not None and direct is not None and direct.views):
        return None
    result = match.roots[0]
    reads = [t.geometry for t in (gradient, x, builder.read(result.outputs[0]), added) if t is not None]
    if not all(is_contiguous(g) for g in reads) or len({g.dtype for g in reads if g is not None}) != 1:
        return None
    return RmsSite(x, rstd, gradient, added, width, match.recipes, result)


def scaled_site(builder: GraphBuilder, inner: RmsSite) -> ScaledSite | None:
    """The chain with the scales before it, where they follow at once, in the same dtype."""
    before = builder.made_by(inner.gradient.value)
    if before is None or inner.gradient.views or inner.x.geometry is None:
        return None
    if before.op not in _SCALED_NORMAL.ops or len(before.reads) != 2 or len(builder.readers[inner.gradient.value]) != 2:
        return None
    if builder.values[inner.gradient.value].leaves is not None:
        return None
    columns = Items(tuple(range(len(inner.x.geometry.shape) - 1)))
    known: dict[str, Read | Arg] = {"x": inner.x, "rstd": inner.rstd, "columns": columns}
    for match in matches(builder, _SCALE_GRADIENT, known=known):
        outer, xhat = match.read("outer"), match.read("xhat")
        if outer is None or xhat is None or xhat.views or outer not in before.reads:
            continue
        weight = before.reads[1 - before.reads.index(outer)]
        forward = next(matches(builder, _SCALED_NORMAL, known={"xhat": xhat, "weight": weight}), None)
        if forward is None:
            continue
        place = {r: i for i, r in enumerate(builder.graph.program)}
        shares = tuple(sorted((before.id, *match.recipes), key=place.__getitem__))
        every = tuple(sorted((*inner.recipes, *shares), key=place.__getitem__))
        made, total = forward.roots[0], match.roots[0]
        return ScaledSite(inner, made, builder.read(made.outputs[0]), weight, outer, total.outputs[0], every, shares)
    return None
