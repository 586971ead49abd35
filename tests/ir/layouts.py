"""A layout that nobody would want and everybody can check: every allocation on top of the one before."""

from __future__ import annotations

from lowtide.ir.graph import Graph
from lowtide.ir.layout import Layout
from lowtide.ir.schedule import Schedule
from lowtide.ir.sequence import blocks_of


def stacked(graph: Graph, schedule: Schedule) -> Layout:
    """Places nothing twice."""
    blocks = blocks_of(graph, schedule, small_B=0)
    offsets_B, top_B = [], 0
    for block in blocks:
        offsets_B.append(top_B)
        top_B += block.size_B
    return Layout(blocks, tuple(offsets_B), top_B, top_B, small_B=0, alignment_B=1)
