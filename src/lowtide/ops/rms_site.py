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
from lowtide.ops.norm_site import argument, is_contiguous

_MUL, _SCALED = "aten.mul.Tensor", "aten.mul.Scalar"
_ADD = "aten.add.Tensor"
_POWER, _SUM = "aten.pow.Tensor_Scalar", "aten.sum.dim_IntList"


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
    found = []
    for root in builder.calls("aten.rsqrt.default"):
        x = _squared(builder, root)
        site = None if x is None else _site(builder, x, builder.read(root.outputs[0]))
        if site is not None:
            found.append(site)
    return found


def _squared(builder: GraphBuilder, root: Recipe) -> Read | None:
    """What x is, if a square root's argument is mean(x ** 2) + eps over the last dimension."""
    shifted = _maker(builder, argument(root, 0), "aten.add.Scalar", "aten.add.Tensor")
    mean = None if shifted is None else _maker(builder, argument(shifted, 0), "aten.mean.dim")
    square = None if mean is None else _maker(builder, argument(mean, 0), _POWER)
    if shifted is None or mean is None or square is None or isinstance(argument(shifted, 1), Read):
        return None
    x = argument(square, 0)
    if not isinstance(x, Read) or x.geometry is None or argument(square, 1) != 2 or argument(mean, 2) is not True:
        return None
    return x if argument(mean, 1) in (Items((-1,)), Items((len(x.geometry.shape) - 1,))) else None


def _site(builder: GraphBuilder, x: Read, rstd: Read) -> RmsSite | None:
    """The chain from r ** 3 on, if nothing else reads what lies within."""
    cube = _reader(builder, rstd, _POWER, 3)
    scaled = None if cube is None else _only_reader(builder, cube, _MUL)
    if cube is None or scaled is None:
        return None
    halved = _maker(builder, _other(scaled, cube), _SCALED)
    total = None if halved is None else _maker(builder, argument(halved, 0), _SUM)
    product = None if total is None else _maker(builder, argument(total, 0), _MUL)
    spread = _only_reader(builder, scaled, "aten.div.Scalar")
    turned = None if spread is None else _only_reader(builder, spread, _MUL)
    if halved is None or total is None or product is None or spread is None or turned is None:
        return None
    doubled = _maker(builder, _other(turned, spread), _SCALED)
    copied = None if doubled is None else _maker(builder, argument(doubled, 0), _POWER)
    result = _only_reader(builder, turned, _ADD)
    if doubled is None or copied is None or result is None:
        return None
    gradient = _partner(product, x)
    direct, added, joined = _direct(builder, _other(result, turned), rstd)
    if direct is None:
        return None
    width = x.geometry.shape[-1] if x.geometry is not None else 0
    constants = argument(halved, 1), argument(doubled, 1), argument(copied, 1), argument(spread, 1), len(result.args)
    same = gradient is not None and _partner(direct, rstd) == gradient and argument(copied, 0) == x
    if gradient is None or not same or constants != (-0.5, 2.0, 1.0, width, 2) or not _sums_rows(total, x):
        return None
    chain = (product, total, halved, cube, scaled, spread, copied, doubled, turned, direct, *joined)
    if any(len(builder.readers.get(r.outputs[0], ())) != 1 for r in chain):
        return None
    if any(builder.values[r.outputs[0]].leaves is not None for r in chain):
        return None
    reads = [t.geometry for t in (gradient, x, builder.read(result.outputs[0]), added) if t is not None]
    if not all(is_contiguous(g) for g in reads) or len({g.dtype for g in reads if g is not None}) != 1:
        return None
    return RmsSite(x, rstd, gradient, added, width, _in_order(builder, (*chain, result)), result)


def _direct(
    builder: GraphBuilder, read: Read | Arg, rstd: Read
) -> tuple[Recipe | None, Read | None, tuple[Recipe, ...]]:
    """The product g * r that is read, what was added to it before, and the recipe that added it."""
    direct = _maker(builder, read, _MUL)
    if direct is not None and rstd in direct.reads:
        return direct, None, ()
    joined = _maker(builder, read, _ADD)
    if joined is None or len(joined.args) != 2 or len(joined.reads) != 2:
        return None, None, ()
    for one, added in (joined.reads, joined.reads[::-1]):
        direct = _maker(builder, one, _MUL)
        if direct is not None and rstd in direct.reads and not one.views:
            return direct, added, (joined,)
    return None, None, ()


def scaled_site(builder: GraphBuilder, inner: RmsSite) -> ScaledSite | None:
    """The chain with the scales before it, where they follow at once, in the same dtype."""
    before = _maker(builder, inner.gradient, _MUL)
    normal = next((r for r in _readers(builder, inner.x, _MUL) if _partner(r, inner.x) == inner.rstd), None)
    if before is None or normal is None or inner.gradient.views:
        return None
    xhat = builder.read(normal.outputs[0])
    for outer, weight in (before.reads, before.reads[::-1]) if len(before.reads) == 2 else ():
        forward = next((r for r in _readers(builder, xhat, _MUL) if _partner(r, xhat) == weight), None)
        product = next((r for r in _readers(builder, xhat, _MUL) if _partner(r, xhat) == outer), None)
        total = None if product is None else _only_reader(builder, product, _SUM)
        if forward is None or product is None or total is None or not _sums_columns(total, inner.x):
            continue
        if len(builder.readers[before.outputs[0]]) != 2 or builder.values[before.outputs[0]].leaves is not None:
            continue
        shares = _in_order(builder, (before, product, total))
        every = _in_order(builder, (*(builder.recipes[r] for r in inner.recipes), before, product, total))
        y = builder.read(forward.outputs[0])
        return ScaledSite(inner, forward, y, weight, outer, total.outputs[0], every, shares)
    return None


def _maker(builder: GraphBuilder, read: Read | Arg, *ops: str) -> Recipe | None:
    """The recipe that makes what is read, if it calls one of some operators."""
    made = builder.made_by(read.value) if isinstance(read, Read) else None
    return made if made is not None and made.op in ops else None


def _readers(builder: GraphBuilder, read: Read, op: str) -> list[Recipe]:
    found = (builder.recipes[r] for r in builder.readers.get(read.value, ()))
    return [r for r in found if r.op == op and read in r.reads]


def _reader(builder: GraphBuilder, read: Read, op: str, constant: Arg) -> Recipe | None:
    return next((r for r in _readers(builder, read, op) if argument(r, 1) == constant), None)


def _only_reader(builder: GraphBuilder, recipe: Recipe, op: str) -> Recipe | None:
    """The one recipe that reads a recipe's output, if it calls an operator."""
    readers = builder.readers.get(recipe.outputs[0], ())
    return builder.recipes[readers[0]] if len(readers) == 1 and builder.recipes[readers[0]].op == op else None


def _other(recipe: Recipe, one: Recipe) -> Read | Arg:
    """Of two arguments, the one that another recipe does not make."""
    first, second = argument(recipe, 0), argument(recipe, 1)
    return second if isinstance(first, Read) and first.value == one.outputs[0] else first


def _partner(recipe: Recipe, one: Read) -> Read | None:
    """What a product multiplies a tensor by; None if the tensor is no factor of it."""
    first, second = argument(recipe, 0), argument(recipe, 1)
    if one not in (first, second):
        return None
    other = second if first == one else first
    return other if isinstance(other, Read) else None


def _sums_rows(total: Recipe, x: Read) -> bool:
    dimensions = len(x.geometry.shape) if x.geometry is not None else 0
    return argument(total, 1) in (Items((-1,)), Items((dimensions - 1,))) and argument(total, 2) is True


def _sums_columns(total: Recipe, x: Read) -> bool:
    dimensions = len(x.geometry.shape) if x.geometry is not None else 0
    return argument(total, 1) == Items(tuple(range(dimensions - 1))) and argument(total, 2) is True


def _in_order(builder: GraphBuilder, recipes: tuple[Recipe, ...]) -> tuple[int, ...]:
    wanted = {r.id for r in recipes}
    return tuple(r for r in builder.graph.program if r in wanted)
