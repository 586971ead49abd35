"""Arguments of a call of ours, tensors and constants in one row, as a recipe has them."""

from __future__ import annotations

from lowtide.ir.call import Arg, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Recipe
from lowtide.ops.builder import GraphBuilder


def bound(*arguments: Read | Arg) -> tuple[tuple[Read, ...], tuple[Arg, ...]]:
    """Splits arguments into the tensors that are read, each once, and arguments that name them."""
    reads = tuple(dict.fromkeys(a for a in arguments if isinstance(a, Read)))
    return reads, tuple(Ref(reads.index(a)) if isinstance(a, Read) else a for a in arguments)


def are_kept(builder: GraphBuilder, *reads: Read | None) -> bool:
    """Whether values may be read in the backward as well: a buffer that the forward changes may not."""
    return all(r is None or builder.values[r.value].readable_through is None for r in reads)


def passed(graph: Graph, recipe: Recipe, position: int) -> Geometry | None:
    """The geometry of the tensor that a recipe passes at a position; None where it passes none."""
    arg = recipe.args[position] if position < len(recipe.args) else None
    if not isinstance(arg, Ref):
        return None
    read = recipe.reads[arg.index]
    return graph.values[read.value].geometry if read.geometry is None else read.geometry
