"""Addresses: where in the arena every allocation of a schedule lies. Units: `_B` bytes."""

from __future__ import annotations

import msgspec

SMALL_B = 512  # requests below this are a thousandth of the bytes and a third of the count: they are not planned
ALIGNMENT_B = 64  # of every address on CPU
_ALIGNMENTS_B = {"cuda": 512}  # by device type; below it a library of CUDA's may choose other kernels, and other bits


class Residency(msgspec.Struct, frozen=True):
    """One residency of a value in a memory: it holds its bytes in steps [start, stop)."""

    value: int
    start: int
    stop: int
    size_B: int
    engine: str = "compute"


class Block(msgspec.Struct, frozen=True, gc=False):
    """One allocation that a schedule makes: it holds its bytes in ticks [start, stop).

    A tick is one allocation or release; ticks count through the whole schedule.

    Arguments:
        step: the run that allocates it.
        order: which of the run's allocations it is, as its mini-trace counts them; -1 for the generator state that the
            run saves before.
        size_B: as requested.
        value: what lives in it, the last one where it was overwritten; None for a temporary of the operator.
    """

    step: int
    order: int
    size_B: int
    start: int
    stop: int
    value: int | None = None


class LiveBlock(msgspec.Struct, frozen=True):
    """Bytes of the arena that something else holds through the whole schedule."""

    offset_B: int
    size_B: int


class Layout(msgspec.Struct, frozen=True):
    """Where every planned allocation of a schedule lies.

    Arguments:
        blocks: in the order of their allocation; requests below `small_B` are left out.
        offsets_B: per block, its first byte.
        height_B: what has to be reserved, live blocks included.
        live_B: most bytes at once, rounded to the alignment, with the live blocks: no layout is lower.
        live_blocks: what the layout was made around.
        placer: who made it.
    """

    blocks: tuple[Block, ...]
    offsets_B: tuple[int, ...]
    height_B: int
    live_B: int
    live_blocks: tuple[LiveBlock, ...] = ()
    small_B: int = SMALL_B
    alignment_B: int = ALIGNMENT_B
    placer: str = ""

    @property
    def reach_B(self) -> int:
        """Where the highest planned allocation ends; live blocks may lie above."""
        ends_B = (o + rounded_B(b.size_B, self.alignment_B) for b, o in zip(self.blocks, self.offsets_B, strict=True))
        return max(ends_B, default=0)

    @property
    def packing(self) -> float:
        """Height over the most bytes at once: 1.0 is perfect."""
        return self.height_B / self.live_B if self.live_B else 1.0


def alignment_of(device: str) -> int:
    """What every address on a device is a multiple of.

    Arguments:
        device: torch device type, `"cpu"` or `"cuda"`.
    """
    return _ALIGNMENTS_B.get(device, ALIGNMENT_B)


def rounded_B(size_B: int, alignment_B: int = ALIGNMENT_B) -> int:
    """A size as the arena reserves it."""
    return -(-size_B // alignment_B) * alignment_B
