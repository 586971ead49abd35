"""The floor for fewer schedules: gradients are made once."""

from __future__ import annotations

import pytest

from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem
from lowtide.planners.bounds.floors import once_behind_the_turn, op_floor
from lowtide.planners.classic.chen import ChenSqrt
from lowtide.planners.reductions.stages import stage_program
from tests.planners.tape import gpt, resnet, unet


@pytest.mark.parametrize("graph", [gpt(2), resnet((1, 1)), unet(2)], ids=["gpt", "resnet", "unet"])
def test_making_gradients_once_takes_no_fewer_bytes(graph: Graph) -> None:
    program = stage_program(graph)
    everything = program.keep_all(0)
    once_B = op_floor(once_behind_the_turn(program)).floor_B
    assert op_floor(program).floor_B <= once_B <= everything.peak_B
    checkpointed = ChenSqrt()
    if checkpointed.refuses(Problem(graph, everything.peak_B)) is None:
        below = checkpointed.solve(Problem(graph, once_B - 1))
        assert below.schedule is None  # Chen's methods make each gradient once
