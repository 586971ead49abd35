"""A normalisation in a graph: its forward with the backward that mirrors it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from lowtide.ir.call import Arg, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.scale import capacity, declines

_ACCURATE = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Places:
    """Where an operator has its arguments, by position; None where it lacks one."""

    x: int
    weight: int
    bias: int | None
    mean: int | None = None
    rstd: int | None = None


@dataclass(frozen=True, slots=True)
class NormSite:
    """Both calls, and what they pass each other. `weight` and `bias` are None where the normalisation has none."""

    forward: Recipe
    backward: Recipe
    gradient: Read
    x: Read
    y: Read
    weight: Read | None
    bias: Read | None
    mean: Read
    rstd: Read


def argument(recipe: Recipe, position: int | None) -> Read | Arg:
    """What a recipe passes at a position: a read, or a constant."""
    arg = None if position is None or position >= len(recipe.args) else recipe.args[position]
    return recipe.reads[arg.index] if isinstance(arg, Ref) else arg


def tensor(recipe: Recipe, position: int | None) -> Read | None:
    """The tensor that a recipe passes at a position; None where it passes none."""
    found = argument(recipe, position)
    return found if isinstance(found, Read) else None


def result(recipe: Recipe, index: int) -> int | None:
    """The value that a recipe makes of one of its operator's results; None if it makes none of it."""
    return next((v for v, p in zip(recipe.outputs, recipe.paths, strict=True) if p == (index,)), None)


def norm_site(builder: GraphBuilder, backward: Recipe, forwards: dict[str, Places], places: Places) -> NormSite | None:
    """Finds the forward that a backward mirrors.

    Arguments:
        forwards: by operator.
        places: of the backward's arguments; its first one is the gradient.

    Returns: None where they do not read the same tensor, or the statistics came from somewhere else.
    """
    gradient, x = tensor(backward, 0), tensor(backward, places.x)
    mean, rstd = tensor(backward, places.mean), tensor(backward, places.rstd)
    if gradient is None or x is None or mean is None or rstd is None:
        return None
    forward = builder.made_by(mean.value)
    if forward is None or forward.op not in forwards or tensor(forward, forwards[forward.op].x) != x:
        return None
    y = result(forward, 0)
    if y is None or (result(forward, 1), result(forward, 2)) != (mean.value, rstd.value) or mean.views or rstd.views:
        return None
    weight, bias = tensor(forward, forwards[forward.op].weight), tensor(forward, forwards[forward.op].bias)
    return NormSite(forward, backward, gradient, x, builder.read(y), weight, bias, mean, rstd)


def can_turn_back(builder: GraphBuilder, site: NormSite) -> bool:
    """Whether what went in can be read off what came out; see `may_turn_back`."""
    tensors = (site.x, site.y, site.weight, site.bias, site.mean, site.rstd)
    return may_turn_back(builder, [t for t in tensors if t is not None], site.weight, site.bias)


def may_turn_back(builder: GraphBuilder, tensors: Iterable[Read], weight: Read | None, bias: Read | None) -> bool:
    """Whether what went in can be read off what came out: few scales are faint, and no bits are missing.

    Arguments:
        tensors: all that takes part.
    """
    geometries = [t.geometry for t in tensors]
    dtypes = {g.dtype for g in geometries if g is not None}
    if weight is None or None in geometries or len(dtypes) != 1 or not dtypes <= set(_ACCURATE):
        return False
    if any(g.numel == 0 for g in geometries if g is not None):
        return False
    scale = builder.content(weight.value)
    return scale is None or not declines(scale, None if bias is None else builder.content(bias.value))


def add_from_output(builder: GraphBuilder, site: NormSite, name: str, mask: Read | Arg, *, columns: bool) -> None:
    """Offers a site's gradients from its output: what is faint is put aside in the forward.

    Arguments:
        name: of the family; its operators are named after it.
        columns: whether scales belong to the last dimensions, not to the second one.
    """
    scales = None if site.weight is None else site.weight.geometry
    aside = builder.value(
        f"{builder.values[site.y.value].name}_aside", aside_geometry(site.x.geometry, scales, columns=columns)
    )
    op = f"lowtide.{name.replace(' ', '_')}"
    reads, args = bound(site.x, site.weight, site.bias)
    saving = builder.recipe(site.forward, f"{op}_put_aside", outputs=(aside,), reads=reads, args=args)
    tensors = (site.gradient, site.y, site.weight, site.bias, site.mean, site.rstd, builder.read(aside))
    reads, args = bound(*tensors, mask)
    backward = builder.recipe(
        site.backward,
        f"{op}_backward_from_output",
        outputs=site.backward.outputs,
        reads=reads,
        args=args,
        paths=site.backward.paths,
    )
    option = Option("from output", (saving, backward), Numerics.REASSOCIATED)
    builder.group(SAVED, f"{name} {site.backward.id}", [site.backward.id], [option])


def aside_geometry(whole: Geometry | None, scales: Geometry | None, *, columns: bool) -> Geometry:
    """Of what is put aside; see `lowtide.ops.scale.put_aside`."""
    assert whole is not None, "what can be turned back has geometries"
    assert scales is not None, "what can be turned back has scales"
    channels = scales.numel
    rest = (whole.numel // channels,) if columns else (whole.shape[0], *whole.shape[2:])
    shape = (capacity(channels), *rest)
    stride = (1, *accumulate((max(n, 1) for n in reversed(shape[1:])), mul))
    return Geometry(whole.dtype, shape, tuple(reversed(stride)), device=whole.device)


def is_contiguous(geometry: Geometry | None, order: Sequence[int] | None = None) -> bool:
    """Whether a tensor is the processor's, has elements, and they lie in order, or in another order of dimensions."""
    if geometry is None or geometry.device != "cpu" or not geometry.numel:
        return False
    expected = 1
    for i in reversed(range(len(geometry.shape)) if order is None else order):
        if geometry.shape[i] > 1 and geometry.stride[i] != expected:
            return False
        expected *= geometry.shape[i]
    return True
