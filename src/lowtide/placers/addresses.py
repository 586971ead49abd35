"""A schedule's allocations, placed around what already lies in the arena. Units: `_B` bytes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from lowtide.ir.graph import Graph
from lowtide.ir.layout import ALIGNMENT_B, Layout, Obstacle, rounded_B
from lowtide.ir.packing import Buffer, Packing
from lowtide.ir.schedule import Schedule
from lowtide.ir.sequence import blocks_of
from lowtide.placers.bound import bound_B
from lowtide.placers.portfolio import place

_NEAR = 1.01  # times the most bytes at once: lower than that nobody gains by a longer search


def lay_out(
    graph: Graph,
    schedule: Schedule,
    *,
    obstacles: Sequence[Obstacle] = (),
    after_B: int = 0,
    capacity_B: int | None = None,
    alignment_B: int = ALIGNMENT_B,
    seed: int = 0,
) -> Layout:
    """Gives every allocation of a schedule an address.

    Arguments:
        graph: with traces; schedule: legal for it.
        obstacles: bytes that others hold through the whole schedule.
        after_B: bytes that are wanted in one piece when the schedule has ended (an optimizer's temporaries).
        capacity_B: a height that is low enough, if no more than a hundredth above the most bytes at once; None asks for
            the lowest, and what takes more than that is asked for it too.
        alignment_B: every address is a multiple of it.
        seed: of the search.

    Returns: offsets from the arena's low end.
    """
    blocks = blocks_of(graph, schedule)
    end = max((b.stop for b in blocks), default=1)
    buffers = [Buffer(b.start, b.stop, b.size_B) for b in blocks]
    buffers += [Buffer(0, end + 1, o.size_B, o.offset_B) for o in obstacles]
    held = [i for i, b in enumerate(blocks) if b.stop == end]
    for index in held:  # what the caller keeps is still there afterwards
        buffers[index] = Buffer(blocks[index].start, end + 1, blocks[index].size_B)
    if after_B:
        buffers.append(Buffer(end, end + 1, after_B))
    packing = Packing(tuple(buffers), alignment_B)
    if capacity_B is not None:
        packing = replace(packing, capacity_B=min(capacity_B, int(_NEAR * bound_B(packing))))
    packed = place(packing, seed=seed)
    return Layout(
        blocks,
        tuple(packed.offsets_B[: len(blocks)]),
        height_B=rounded_B(packed.height_B, alignment_B),
        live_B=packed.bound_B,
        obstacles=tuple(obstacles),
        alignment_B=alignment_B,
        placer=packed.placer,
    )
