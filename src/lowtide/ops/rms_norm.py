"""RMS norm's backward as one operator, from its input or from its output.

Autograd's chain has ten operators as large as the input, and several of their results at once. Some rows at a time, the
same operators in the same order give the same bits, and what lies between them remains in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, final

from lowtide.ir.graph import Graph, Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound, passed
from lowtide.ops.base import FUSION, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.norm_site import aside_geometry, may_turn_back
from lowtide.ops.rms_site import RmsSite, ScaledSite, rms_sites, scaled_site
from lowtide.ops.scale import faint_channels, inverse, put_aside_columns

if TYPE_CHECKING:
    from torch import Tensor

_AT_ONCE_B = 2**18  # of rows that are worked on together


def rms_norm_backward(
    gradient: Tensor,
    x: Tensor,
    rstd: Tensor,
    width: int,
    added: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of x from that of x * r, with r = (mean(x ** 2) + eps) ** -0.5: autograd's chain, row by row.

    torch sums a row otherwise if there is another row, so no row is alone that was not. `out` may be the
    gradient: a row of it is not wanted once it has been multiplied.
    """
    made = torch.empty_like(x) if out is None else out
    incoming, xs, spread, into = (t.reshape(-1, t.shape[-1]) for t in (gradient, x, rstd, made))
    others = None if added is None else added.reshape(-1, width)
    for part in row_parts(spread.shape[0], width * x.element_size()):
        g, r = incoming[part], spread[part]
        slope = (g * xs[part]).sum(1, True).mul_(-0.5).mul_(r.pow(3)).div_(width)
        torch.mul(g, r, out=into[part])
        if others is not None:
            into[part].add_(others[part])
        into[part].add_((xs[part] * 2.0).mul_(slope))
    return made


def rms_norm_backward_from_output(
    gradient: Tensor,
    y: Tensor,
    weight: Tensor,
    rstd: Tensor,
    aside: Tensor,
    width: int,
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the scales from that of y = x * r * w, and from y itself.

    Faint columns come from what was put aside.
    """
    faint, over, scale = faint_channels(weight, None), inverse(weight, None).reshape(-1), weight.reshape(-1)
    made, total = torch.empty_like(y), torch.zeros_like(scale)
    incoming, ys, spread, into = (t.reshape(-1, t.shape[-1]) for t in (gradient, y, rstd, made))
    others = None if added is None else added.reshape(-1, width)
    for part in row_parts(spread.shape[0], width * y.element_size()):
        xhat, r, rows = ys[part] * over, spread[part], into[part]
        for row, column in enumerate(faint):
            xhat[:, column] = aside[row, part] * r[:, 0]
        torch.mul(incoming[part], xhat, out=rows)
        total += rows.sum(0)
        middle = rows.mul_(scale).sum(1, True).div_(width)
        torch.mul(incoming[part], scale, out=rows)
        rows.sub_(xhat.mul_(middle)).mul_(r)
        if others is not None:
            rows.add_(others[part])
    return made, total.view([1] * (y.dim() - 1) + [width])


def row_parts(rows: int, row_B: int) -> Iterator[slice]:
    """Rows to work on together: as many as fit the cache, and at least two."""
    count = max(1, min(rows // 2, -(-rows * row_B // _AT_ONCE_B)))
    ends = [rows * i // count for i in range(count + 1)]
    return (slice(a, b) for a, b in pairwise(ends))


@final
@dataclass(frozen=True)
class RmsNorm(AbstractFamily):
    """The backward's chain as one operator (exact), also from output (reassociated)."""

    name: ClassVar[str] = "rms norm"
    kind: ClassVar[str] = FUSION
    kernels: ClassVar = {
        "rms_norm_backward": Kernel(rms_norm_backward, workspace_B=lambda g, r: _workspace_B(g, r), by_size=True),
        "rms_norm_put_aside": Kernel(put_aside_columns, traffic_B=lambda g, r: 2 * g.values[r.outputs[0]].size_B),
        "rms_norm_backward_from_output": Kernel(
            rms_norm_backward_from_output, workspace_B=lambda g, r: _workspace_B(g, r)
        ),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        for site in rms_sites(builder):
            scaled = scaled_site(builder, site)
            replaced = site.recipes if scaled is None else scaled.recipes
            if not builder.may_replace(replaced):
                continue
            options = [Option("as one", (*(() if scaled is None else scaled.shares), _as_one(builder, site)))]
            if (
                scaled is not None
                and numerics.admits(Numerics.REASSOCIATED)
                and may_turn_back(
                    builder, (scaled.y, scaled.weight, site.x, site.rstd, scaled.outer), scaled.weight, None
                )
            ):
                options.append(_from_output(builder, scaled))
            builder.group(self.kind, f"{self.name} {site.result.id}", replaced, options)


def _as_one(builder: GraphBuilder, site: RmsSite) -> int:
    reads, args = bound(site.gradient, site.x, site.rstd, site.width, site.added)
    return builder.recipe(site.result, "lowtide.rms_norm_backward", outputs=site.result.outputs, reads=reads, args=args)


def _from_output(builder: GraphBuilder, scaled: ScaledSite) -> Option:
    site = scaled.inner
    geometry = aside_geometry(site.x.geometry, scaled.weight.geometry, columns=True)
    aside = builder.value(f"{builder.values[scaled.y.value].name}_aside", geometry)
    reads, args = bound(site.x, scaled.weight, None)
    saving = builder.recipe(scaled.forward, "lowtide.rms_norm_put_aside", outputs=(aside,), reads=reads, args=args)
    reads, args = bound(scaled.outer, scaled.y, scaled.weight, site.rstd, builder.read(aside), site.width, site.added)
    outputs = (*site.result.outputs, scaled.scale_gradient)
    backward = builder.recipe(
        site.result, "lowtide.rms_norm_backward_from_output", outputs=outputs, reads=reads, args=args
    )
    return Option("from output", (saving, backward), Numerics.REASSOCIATED)


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Two results as large as the rows that are worked on together, and some numbers per row and column."""
    x = passed(graph, recipe, 1)
    if x is None or not x.numel:
        return 0
    row_B = x.extent_B // x.numel * x.shape[-1]
    most: int = max(p.stop - p.start for p in row_parts(x.numel // x.shape[-1], row_B))
    return (3 * most + 8) * row_B
