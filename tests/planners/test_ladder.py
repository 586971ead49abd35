"""Rungs: what is kept across a cut so that little has to come back at once."""

from __future__ import annotations

import pytest
from benchmarks.problem_set import load

from lowtide.ir.plan import Problem
from lowtide.planners import cuts
from lowtide.planners.bounds.cut_points import stage_scene
from lowtide.planners.chain.ladder import ladder
from lowtide.planners.cuts import SingleCutReplay
from lowtide.planners.reductions.stages import StageProgram, stage_program
from tests.planners.tape import chain


def cut_of_a_chain(length: int) -> tuple[StageProgram, tuple[int, ...]]:
    """Its program, and what may be kept across a cut where it is fullest."""
    program = stage_program(chain(length))
    return program, stage_scene(program, program.keep_all(0).peak_stage).values


def test_more_bytes_at_once_take_more_rungs_and_leave_less_between_two() -> None:
    cut = cut_of_a_chain(200)
    few, many = ladder(*cut, 2**24), ladder(*cut, 2**27)
    assert few is not None
    assert many is not None
    assert 3 <= len(few.rungs) < len(many.rungs) <= 100
    assert few.rungs | many.rungs <= set(cut[1])
    assert few.between_B * (len(few.rungs) + 1) <= 2**24


def test_a_short_forward_has_none() -> None:
    assert ladder(*cut_of_a_chain(4), 2**24) is None


def test_a_deep_network_gets_its_plan_by_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load("superneurons_254")
    problem = Problem(graph, int(0.4 * stage_program(graph).keep_all(0).peak_B))
    planner = SingleCutReplay(rounds=1)
    assert planner.solve(problem).schedule is not None
    monkeypatch.setattr(cuts, "ladder", lambda *_: None)
    assert planner.solve(problem).schedule is None
