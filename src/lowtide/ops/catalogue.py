"""Every family of implementations, and the graph with all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lowtide.errors import NumericsError
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.ops.activations import Activations
from lowtide.ops.attention import Attention
from lowtide.ops.base import KINDS, AbstractFamily, Kernel
from lowtide.ops.batch_norm import BatchNorm
from lowtide.ops.batch_norm_in_place import BatchNormInPlace
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.compression import Compression
from lowtide.ops.convolution import Convolution
from lowtide.ops.convolution_algorithms import ConvolutionAlgorithms
from lowtide.ops.cross_entropy import CrossEntropy
from lowtide.ops.dropout import Dropout
from lowtide.ops.flags import Flags
from lowtide.ops.group_norm import GroupNorm
from lowtide.ops.in_place import InPlace
from lowtide.ops.layer_norm import LayerNorm
from lowtide.ops.linear_cross_entropy import LinearCrossEntropy
from lowtide.ops.pointwise import Pointwise
from lowtide.ops.pooling import Pooling
from lowtide.ops.rms_norm import RmsNorm
from lowtide.ops.stand_ins import StandIns
from lowtide.ops.tied_embedding import TiedEmbedding
from lowtide.ops.updates import UPDATES

FAMILIES: tuple[AbstractFamily, ...] = (
    LinearCrossEntropy(),
    CrossEntropy(),
    TiedEmbedding(),
    Attention(),
    Activations(),
    Dropout(),
    Pooling(),
    StandIns(),
    Flags(),
    BatchNorm(),
    LayerNorm(),
    GroupNorm(),
    RmsNorm(),
    Convolution(),
    ConvolutionAlgorithms(),
    Pointwise(),  # after whatever is for one operator alone
    BatchNormInPlace(),
    Compression(),
    InPlace(),  # last: what the others add may run in place as well
)
"""In this order they add to a graph: the first to replace a recipe has it."""


@functools.cache
def kernels() -> Mapping[str, Kernel]:
    """Operators of ours by full name, `"lowtide.pack_positive"`."""
    families = {f"lowtide.{name}": kernel for family in FAMILIES for name, kernel in family.kernels.items()}
    return {**families, **UPDATES}


def parse_without(names: Collection[str]) -> frozenset[str]:
    """Reads what is to be left out.

    Arguments:
        names: kinds (`lowtide.ops.base.KINDS`) or names of families.

    Raises:
        NumericsError: if one of them is neither.
    """
    families = sorted(family.name for family in FAMILIES)
    listed = [names] if isinstance(names, str) or not isinstance(names, Collection) else names
    given = {name if isinstance(name, str) else repr(name) for name in listed}
    unknown = sorted(given - {*KINDS, *families}, key=str)
    if unknown:
        raise NumericsError(
            f"without={unknown[0]!r} names no implementations: write any of {', '.join(map(repr, KINDS))}, or of the "
            f"families {', '.join(map(repr, families))}"
        )
    return frozenset(given)


def enlarge(
    graph: Graph,
    numerics: Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    content: Callable[[int], Any] | None = None,
) -> Graph:
    """Adds every implementation that the families know for a graph's operators.

    Arguments:
        graph: as captured, before it is profiled; the program is kept.
        numerics: how far results may be from the program's.
        without: kinds (`lowtide.ops.base.KINDS`) or names of families to leave out.
        content: the tensor that a value of the caller's holds, by id, or None: with it, sites are left alone whose
            scales are too near zero (`lowtide.ops.scale`). Without it, the step says so when it runs.

    Returns: a graph with more values, recipes and groups; the same ids for what was there. O(graph).
    """
    builder = GraphBuilder(graph, content)
    for family in FAMILIES:
        if family.name not in without and family.kind not in without:
            family.add(builder, numerics)
    return builder.finish()
