"""Addresses keep to the alignment of the device that they are for."""

from __future__ import annotations

import pytest

from lowtide.ir.check import check
from lowtide.ir.layout import LiveBlock, alignment_of, rounded_B
from lowtide.ir.replay import carried_by
from lowtide.ir.schedule import Boundary
from lowtide.placers.addresses import lay_out, lay_out_segment
from tests.report.plan_records import MiB, graph, schedule


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_address_is_a_multiple_of_the_devices_alignment(device: str) -> None:
    unit_B = alignment_of(device)
    layout = lay_out(graph(), schedule(), live_blocks=(LiveBlock(3 * MiB, 2 * MiB),), alignment_B=unit_B)
    assert layout.alignment_B == unit_B == {"cpu": 64, "cuda": 512}[device]
    assert layout.blocks
    assert all(offset_B % unit_B == 0 for offset_B in (*layout.offsets_B, layout.height_B))
    assert layout.live_B >= max(rounded_B(block.size_B, unit_B) for block in layout.blocks)
    check(graph(), schedule(), layout=layout)


def test_what_lies_high_above_does_not_lift_a_plan() -> None:
    alone = lay_out(graph(), schedule(), capacity_B=1024 * MiB)
    above = LiveBlock(512 * MiB, MiB)
    layout = lay_out(graph(), schedule(), live_blocks=(above,), capacity_B=1024 * MiB)
    assert layout.reach_B <= 1.01 * alone.height_B + 1.01 * above.size_B
    assert layout.height_B == above.offset_B + above.size_B
    check(graph(), schedule(), layout=layout)


def test_a_segment_is_placed_around_what_was_not_planned() -> None:
    plan = lay_out(graph(), schedule())
    carried = carried_by(schedule(), plan, 2)[1]
    assert carried
    own = [i for i, b in enumerate(plan.blocks) if b.step > schedule().steps.index(Boundary(1))]
    foreign = LiveBlock(plan.offsets_B[own[-1]], rounded_B(plan.blocks[own[-1]].size_B))
    layout, reach_B = lay_out_segment(
        schedule(), plan, 1, taken=(foreign,), passing=carried - {foreign.offset_B}, capacity_B=1024 * MiB
    )
    placed = [(layout.offsets_B[i], layout.offsets_B[i] + rounded_B(plan.blocks[i].size_B)) for i in own]
    assert all(hi <= foreign.offset_B or lo >= foreign.offset_B + foreign.size_B for lo, hi in placed)
    assert max(hi for _, hi in placed) == reach_B
    assert [o for i, o in enumerate(layout.offsets_B) if i not in own] == [
        o for i, o in enumerate(plan.offsets_B) if i not in own
    ]


def test_what_lies_behind_a_smaller_tensor_at_a_planned_offset_is_gone_round() -> None:
    plan = lay_out(graph(), schedule(), capacity_B=1024 * MiB)
    carried = carried_by(schedule(), plan, 2)[1]
    own = [i for i, b in enumerate(plan.blocks) if b.step > schedule().steps.index(Boundary(1))]
    behind = LiveBlock(min(carried) + plan.alignment_B, plan.alignment_B)
    layout, _ = lay_out_segment(schedule(), plan, 1, taken=(behind,), passing=carried, capacity_B=1024 * MiB)
    placed = [(layout.offsets_B[i], layout.offsets_B[i] + rounded_B(plan.blocks[i].size_B)) for i in own]
    assert all(hi <= behind.offset_B or lo >= behind.offset_B + behind.size_B for lo, hi in placed)
