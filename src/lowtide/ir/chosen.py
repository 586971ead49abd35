"""Which of its implementations a schedule runs: per group, the option."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.ir.graph import Graph


def chosen_options(graph: Graph, schedule_recipes: Sequence[int] | frozenset[int]) -> dict[int, int]:
    """Finds which option of every group a schedule runs: the first that has all of the group's recipes among them.

    Arguments:
        schedule_recipes: that run.

    Returns: group -> option, for groups of which some recipe runs.
    """
    ran = frozenset(schedule_recipes)
    found = {}
    for g, group in enumerate(graph.groups):
        mine = ran.intersection(r for o in group.options for r in o.recipes)
        if mine:
            found[g] = next(k for k, o in enumerate(group.options) if mine <= set(o.recipes))
    return found
