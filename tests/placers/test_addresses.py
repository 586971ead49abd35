"""Addresses keep to the alignment of the device that they are for."""

from __future__ import annotations

import pytest

from lowtide.ir.check import check
from lowtide.ir.layout import Obstacle, alignment_of, rounded_B
from lowtide.placers.addresses import lay_out
from tests.report.plan_records import MiB, graph, schedule


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_address_is_a_multiple_of_the_devices_alignment(device: str) -> None:
    unit_B = alignment_of(device)
    layout = lay_out(graph(), schedule(), obstacles=(Obstacle(3 * MiB, 2 * MiB),), alignment_B=unit_B)
    assert layout.alignment_B == unit_B == {"cpu": 64, "cuda": 512}[device]
    assert layout.blocks
    assert all(offset_B % unit_B == 0 for offset_B in (*layout.offsets_B, layout.height_B))
    assert layout.live_B >= max(rounded_B(block.size_B, unit_B) for block in layout.blocks)
    check(graph(), schedule(), layout=layout)
