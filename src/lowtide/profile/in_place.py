"""What runs in place, once it is known what its bytes are: billed like the plain recipe, or withdrawn. Torch-free."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.graph import Graph
from lowtide.ir.in_place import has_the_bytes, plain_candidates


def settled(graph: Graph) -> Graph:
    """Gives every in-place candidate the seconds of the recipe that it stands for, and withdraws those that do not fit.

    The arithmetic is the same, and the bytes are the same but for where they go; a difference in the seconds would
    mostly be noise, of which planners would make decisions. A candidate that does not fit the bytes of the value it
    overwrites, as they turned out to be, becomes the plain recipe once more: ids are kept.

    O(recipes).
    """
    recipes = list(graph.recipes)
    for number, plain in plain_candidates(graph).items():
        candidate, original = recipes[number], recipes[plain]
        value, heir = (
            graph.values[v] for v in (candidate.consumes[0].value, candidate.outputs[candidate.consumes[0].output or 0])
        )
        fits = has_the_bytes(candidate, value, heir)
        recipes[number] = replace(candidate, time_s=original.time_s) if fits else replace(original, id=number)
    return replace(graph, recipes=tuple(recipes))
