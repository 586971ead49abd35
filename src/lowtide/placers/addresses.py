"""A schedule's allocations, placed around what already lies in the arena. Units: `_B` bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from lowtide.errors import IllegalPlan
from lowtide.ir.check_packing import check_packing
from lowtide.ir.graph import Graph
from lowtide.ir.layout import ALIGNMENT_B, Block, Layout, LiveBlock, rounded_B
from lowtide.ir.packing import Buffer, Packed, Packing
from lowtide.ir.schedule import Boundary, Schedule
from lowtide.ir.sequence import blocks_of
from lowtide.placers.bound import bound_B
from lowtide.placers.portfolio import place

_NEAR = 1.01  # times the most bytes at once: lower than that nobody gains by a longer search


def lay_out(
    graph: Graph,
    schedule: Schedule,
    *,
    live_blocks: Sequence[LiveBlock] = (),
    after_B: int = 0,
    capacity_B: int | None = None,
    alignment_B: int = ALIGNMENT_B,
    seed: int = 0,
) -> Layout:
    """Gives every allocation of a schedule an address.

    Arguments:
        graph: with traces; schedule: legal for it.
        live_blocks: bytes that others hold through the whole schedule.
        after_B: bytes that are wanted in one piece when the schedule has ended (an optimizer's temporaries).
        capacity_B: a height that is low enough, if no more than a hundredth above the most bytes at once; None asks for
            the lowest, and what takes more than that is asked for it too.
        alignment_B: every address is a multiple of it.
        seed: of the search.

    Returns: offsets from the arena's low end.
    """
    blocks = blocks_of(graph, schedule)
    packing = _packing(blocks, live_blocks, after_B, alignment_B)
    packed = None
    if capacity_B is not None:
        near_B = min(capacity_B, rounded_B(int(_NEAR * bound_B(packing)), alignment_B))
        packed = _place_low(packing, near_B, seed)
    if packed is None:
        packed = place(replace(packing, capacity_B=capacity_B), seed=seed)
    return Layout(
        blocks,
        tuple(packed.offsets_B[: len(blocks)]),
        height_B=rounded_B(max((packed.height_B, *(o.offset_B + o.size_B for o in live_blocks))), alignment_B),
        live_B=packed.bound_B,
        live_blocks=tuple(live_blocks),
        alignment_B=alignment_B,
        placer=packed.placer,
    )


def at_known_places(
    graph: Graph, schedule: Schedule, known: Layout, *, after_B: int = 0, alignment_B: int = ALIGNMENT_B
) -> Layout | None:
    """The addresses that another layout gives the same allocations of a schedule.

    Everything but the addresses is found anew, so that nothing depends on what a file says.

    Arguments:
        graph: with traces; schedule: legal for it.
        known: of the same schedule, perhaps with other traces, from anywhere.
        after_B, alignment_B: see `lay_out`.

    Returns: None where an allocation has no address there, or two of them would share bytes. O(blocks log blocks).
    """
    blocks = blocks_of(graph, schedule)
    pairs = zip(known.blocks, known.offsets_B, strict=False)
    places = {(b.step, b.order, b.size_B): offset_B for b, offset_B in pairs}
    if known.live_blocks or any((b.step, b.order, b.size_B) not in places for b in blocks):
        return None
    offsets_B = [places[b.step, b.order, b.size_B] for b in blocks]
    end = max((b.stop for b in blocks), default=1)
    if after_B:
        held = sorted((o, b.size_B) for b, o in zip(blocks, offsets_B, strict=True) if b.stop == end)
        offsets_B.append(_lowest_gap_B(held, after_B, alignment_B))
    packing = _packing(blocks, (), after_B, alignment_B)
    sizes_B = (rounded_B(b.size_B, alignment_B) for b in packing.buffers)
    height_B = max((o + size_B for o, size_B in zip(offsets_B, sizes_B, strict=True)), default=0)
    packed = Packed(tuple(offsets_B), height_B, low_B := bound_B(packing), known.placer, low_B == height_B, 0.0)
    try:
        check_packing(packing, packed)
    except IllegalPlan:
        return None
    return Layout(
        blocks, packed.offsets_B[: len(blocks)], height_B, low_B, alignment_B=alignment_B, placer=known.placer
    )


def _packing(blocks: Sequence[Block], live_blocks: Sequence[LiveBlock], after_B: int, alignment_B: int) -> Packing:
    """A schedule's allocations among the live blocks, and last what has to be free when the schedule has ended."""
    end = max((b.stop for b in blocks), default=1)
    # What the caller keeps is still there afterwards.
    buffers = [Buffer(b.start, end + 1 if b.stop == end else b.stop, b.size_B) for b in blocks]
    buffers += [Buffer(0, end + 1, o.size_B, o.offset_B) for o in live_blocks]
    if after_B:
        buffers.append(Buffer(end, end + 1, after_B))
    return Packing(tuple(buffers), alignment_B)


def _lowest_gap_B(taken: Sequence[tuple[int, int]], size_B: int, alignment_B: int) -> int:
    """The lowest address of so many bytes between ranges, given by address as offset and size."""
    low_B = 0
    for offset_B, held_B in taken:
        if offset_B - low_B >= size_B:
            break
        low_B = max(low_B, offset_B + rounded_B(held_B, alignment_B))
    return low_B


def _place_low(packing: Packing, height_B: int, seed: int) -> Packed | None:
    """A placement below a height, past which live blocks do not matter; None if none is found."""
    within = [
        b if b.offset_B is None else replace(b, size_B=max(0, min(b.size_B, height_B - b.offset_B)))
        for b in packing.buffers
    ]
    kept = [i for i, b in enumerate(within) if b.offset_B is None or b.size_B > 0]
    low = replace(packing, buffers=tuple(within[i] for i in kept), capacity_B=height_B)
    packed = place(low, seed=seed)
    if packed.height_B > height_B and within != list(packing.buffers):
        return None  # higher up live blocks do matter
    offsets_B = [b.offset_B or 0 for b in packing.buffers]
    for index, offset_B in zip(kept, packed.offsets_B, strict=True):
        offsets_B[index] = offset_B
    return replace(packed, offsets_B=tuple(offsets_B))


def lay_out_segment(
    schedule: Schedule,
    layout: Layout,
    segment: int,
    *,
    taken: Sequence[LiveBlock],
    passing: Collection[int],
    capacity_B: int,
) -> tuple[Layout, int]:
    """Gives the allocations of one segment other addresses: its own have been taken by what the plan did not know.

    Arguments:
        schedule, layout: of the plan, all segments.
        segment: which one is about to run.
        taken: bytes that others hold throughout, what the plan passes on to later segments included.
        passing: where earlier segments put what this one frees as planned.
        capacity_B: a height that is low enough.

    Returns: the layout with the segment's addresses replaced, as high as all of it has to be, and how high the segment
        alone reaches.

    Raises:
        IllegalPlan: if the placement is wrong, which is a mistake in the placer.
    """
    first, last = _extent(schedule, segment)
    blocks = layout.blocks
    mine = [i for i, b in enumerate(blocks) if first <= b.step < last]
    if not mine:
        return layout, 0
    begin, end = min(blocks[i].start for i in mine), max(b.stop for b in blocks) + 1
    later = min((b.start for b in blocks if b.step >= last), default=end)
    buffers = [Buffer(blocks[i].start, _until(blocks[i].stop, later, end), blocks[i].size_B) for i in mine]
    for block, offset_B in zip(blocks, layout.offsets_B, strict=True):
        # What lies at a planned offset may be smaller than planned, with others behind it: it is then something else.
        is_here = offset_B in passing and not _meets(offset_B, rounded_B(block.size_B, layout.alignment_B), taken)
        if block.step < first and block.stop > begin and is_here:
            buffers.append(Buffer(begin, _until(block.stop, later, end), block.size_B, offset_B))
    buffers += [Buffer(begin, end, o.size_B, o.offset_B) for o in taken]
    packing = Packing(tuple(buffers), layout.alignment_B, capacity_B=capacity_B)
    packed = place(packing)
    check_packing(packing, packed)
    offsets_B = list(layout.offsets_B)
    for index, offset_B in zip(mine, packed.offsets_B, strict=False):
        offsets_B[index] = offset_B
    ends_B = (o + rounded_B(blocks[i].size_B, layout.alignment_B) for i, o in zip(mine, packed.offsets_B, strict=False))
    height_B = rounded_B(packed.height_B, layout.alignment_B)
    return replace(layout, offsets_B=tuple(offsets_B), height_B=height_B, placer=packed.placer), max(ends_B)


def _meets(offset_B: int, size_B: int, taken: Sequence[LiveBlock]) -> bool:
    """Whether a stretch shares a byte with what is taken."""
    return any(o.offset_B < offset_B + size_B and offset_B < o.offset_B + o.size_B for o in taken)


def _extent(schedule: Schedule, segment: int) -> tuple[int, int]:
    """The steps [first, last) of a segment."""
    starts = {s.segment: i for i, s in enumerate(schedule.steps) if isinstance(s, Boundary)}
    first = starts.get(segment, 0)
    return first, min((i for i in starts.values() if i > first), default=len(schedule.steps))


def _until(stop: int, later: int, end: int) -> int:
    """When an allocation of a segment ends: what later segments use is there to the end, whenever they run."""
    return end if stop > later else stop
