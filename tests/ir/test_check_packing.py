"""The checker of placements: it believes nothing."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.errors import IllegalPlan
from lowtide.ir.check_packing import check_packing
from lowtide.ir.packing import Buffer, Packed, Packing

LINE = Packing((Buffer(0, 4, 10), Buffer(2, 6, 8), Buffer(4, 8, 16), Buffer(0, 9, 0)), alignment_B=8)
RING = Packing((Buffer(4, 2, 8), Buffer(1, 3, 8), Buffer(3, 4, 8), Buffer(2, 2, 8)), alignment_B=8, period=6)
GIVEN = Packing((Buffer(0, 4, 8, 16), Buffer(0, 4, 8)), alignment_B=8)


def packed(*offsets_B: int, height_B: int, bound_B: int | None = None) -> Packed:
    bound_B = height_B if bound_B is None else bound_B
    return Packed(offsets_B, height_B, bound_B, "hand", bound_B == height_B, 0.0)


@pytest.mark.parametrize(
    ("packing", "placement"),
    [
        (LINE, packed(0, 16, 0, 0, height_B=24)),
        (LINE, packed(8, 0, 8, 64, height_B=24)),  # no bytes: it may lie anywhere
        (RING, packed(0, 8, 0, 16, height_B=24)),
        (GIVEN, packed(16, 0, height_B=24, bound_B=16)),
        (Packing(()), packed(height_B=0)),
    ],
)
def test_legal_placements_pass(packing: Packing, placement: Packed) -> None:
    check_packing(packing, placement)


@pytest.mark.parametrize(
    ("packing", "placement", "words"),
    [
        (LINE, packed(0, 8, 0, 0, height_B=24), "buffers 0 and 1 share bytes 8 to 16 at tick 2"),
        (LINE, packed(0, 16, 8, 0, height_B=24), "buffers 1 and 2 share bytes 16 to 24 at tick 4"),
        (RING, packed(0, 0, 0, 16, height_B=24), "buffers 0 and 1 share bytes 0 to 8 at tick 1"),
        (RING, packed(0, 8, 0, 8, height_B=24), "share bytes 8 to 16"),
        (RING, packed(16, 8, 0, 16, height_B=24), "share bytes 16 to 24 at tick 0"),
        (LINE, packed(0, 16, 0, height_B=24), "3 offsets for 4 buffers"),
        (LINE, packed(0, 16, 4, 0, height_B=24), "buffer 2 lies at 4, not a multiple of 8"),
        (LINE, packed(0, 16, -8, 0, height_B=24), "buffer 2 lies at -8"),
        (LINE, packed(0, 16, 0, 0, height_B=20), "buffer 1 ends above the height of 20"),
        (GIVEN, packed(8, 0, height_B=24), "buffer 0 lies at 8, not at its given offset 16"),
        (LINE, packed(0, 16, 0, 0, height_B=24, bound_B=32), "below its own bound"),
    ],
)
def test_illegal_placements_are_named(packing: Packing, placement: Packed, words: str) -> None:
    with pytest.raises(IllegalPlan) as refusal:
        check_packing(packing, placement)
    assert words in str(refusal.value)


def test_a_claim_of_optimality_follows_from_the_bound() -> None:
    with pytest.raises(IllegalPlan, match="optimal"):
        check_packing(LINE, msgspec.structs.replace(packed(0, 16, 0, 0, height_B=24), optimal=False))
