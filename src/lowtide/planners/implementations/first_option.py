"""Leaves every group of alternatives with its first option, the one that the program runs."""

from __future__ import annotations

from lowtide.ir.graph import Graph


def allowed_recipes(graph: Graph) -> frozenset[int]:
    """Ids of the recipes that may run when every group takes its first option. O(recipes)."""
    barred = {r for group in graph.groups for option in group.options[1:] for r in option.recipes}
    return frozenset(r.id for r in graph.recipes if r.id not in barred)


def fixes_choices(graph: Graph) -> bool:
    """Whether the reduction takes anything away."""
    return any(len(group.options) > 1 for group in graph.groups)
