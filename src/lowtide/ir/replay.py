"""A layout as generated code meets it: per segment, which allocation is to be served where. Units: `_B` bytes."""

from __future__ import annotations

import msgspec

from lowtide.ir.graph import Graph
from lowtide.ir.layout import Layout
from lowtide.ir.schedule import Boundary, Fetch, Run, Schedule, Send


class ReplayTable(msgspec.Struct, frozen=True):
    """The planned allocations of one segment, in order.

    Arguments:
        names: per step of the segment that runs or copies something, its operator and where it comes from.
        first: per such step, the index of its first allocation; one more entry for the end.
        sizes_B: per allocation, the bytes requested.
        offsets_B: per allocation, where it is served.
    """

    names: tuple[str, ...]
    first: tuple[int, ...]
    sizes_B: tuple[int, ...]
    offsets_B: tuple[int, ...]


def replay_tables(graph: Graph, schedule: Schedule, layout: Layout) -> tuple[ReplayTable, ...]:
    """Sorts a layout by segments and steps: one table per segment of the graph. O(steps + blocks)."""
    at: dict[int, list[int]] = {}
    for index, block in enumerate(layout.blocks):
        at.setdefault(block.step, []).append(index)
    tables: list[ReplayTable] = []
    names: list[str] = []
    first = [0]
    blocks: list[int] = []

    def end_segment() -> None:
        sizes_B = tuple(layout.blocks[i].size_B for i in blocks)
        tables.append(ReplayTable(tuple(names), tuple(first), sizes_B, tuple(layout.offsets_B[i] for i in blocks)))
        names.clear()
        blocks.clear()
        first[:] = [0]

    for index, step in enumerate(schedule.steps):
        if isinstance(step, Boundary) and index:
            end_segment()
        elif isinstance(step, Run):
            recipe = graph.recipes[step.recipe]
            names.append(f"{recipe.op} at {recipe.origin.source}" if recipe.origin.source else recipe.op)
            blocks += at.get(index, ())
            first.append(len(blocks))
        elif isinstance(step, Send | Fetch):
            direction = f"to the {step.memory}" if isinstance(step, Send) else f"back from the {step.memory}"
            names.append(f"{graph.values[step.value].name} {direction}")
            blocks += at.get(index, ())
            first.append(len(blocks))
    end_segment()
    return tuple(tables)


def carried_by(schedule: Schedule, layout: Layout, segments: int) -> tuple[frozenset[int], ...]:
    """Per segment, the offsets of what earlier segments allocated and that is still live when it begins."""
    starts = [0] * segments
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Boundary):
            starts[step.segment] = index
    begins = [min((b.start for b in layout.blocks if b.step >= start), default=0) for start in starts]
    places = list(zip(layout.blocks, layout.offsets_B, strict=True))
    return tuple(
        frozenset(offset_B for block, offset_B in places if block.step < start and block.stop > begin)
        for start, begin in zip(starts, begins, strict=True)
    )
