"""Bounds over all choices against the true optimum of all choices, on graphs small enough to try everything."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from lowtide.ir.graph import Graph
from lowtide.planners.bounds.cut_model import choice_cut
from lowtide.planners.bounds.cut_points import CutPoint, end_of
from lowtide.planners.bounds.floors import joint_floor
from lowtide.planners.implementations.candidates import Candidates, all_candidates
from lowtide.planners.implementations.choice import choose
from lowtide.planners.reductions.stages import stage_program
from tests.planners.brute_force import Exhaustive
from tests.planners.menus import every_choice, random_menu

PERCENTS = {
    4: (90,), 6: (70, 90), 9: (90,), 13: (70, 80), 18: (90,), 20: (70,), 25: (90,), 27: (90,), 30: (80,), 31: (80,),
    32: (80,), 35: (90,), 40: (90,), 41: (90,), 42: (90,), 46: (80,), 51: (70, 80), 57: (80,), 58: (70,),
}  # fmt: skip
"""Of what keeping everything takes: budgets at which some choice has to run something again."""


@functools.cache
def menu(seed: int) -> Graph:
    return random_menu(seed, 5 + seed % 4, 1 + seed % 3)


@functools.cache
def optimum_s(seed: int, percent: int) -> float | None:
    times = (
        Exhaustive(choose(menu(seed), c), budget_B(seed, percent)).least_time_s() for c in every_choice(menu(seed))
    )
    return min((t for t in times if t is not None), default=None)


@functools.cache
def budget_B(seed: int, percent: int) -> int:
    return stage_program(menu(seed)).keep_all(0).peak_B * percent // 100


def cut_points(candidates: Candidates) -> Iterator[CutPoint]:
    for place, segment in enumerate(candidates.segment_of):
        yield CutPoint(segment, place)
    for segment in range(len(candidates.graph.segments)):
        yield end_of(candidates, segment)


@pytest.mark.parametrize("seed", PERCENTS)
def test_no_schedule_of_any_choice_beats_a_cut(seed: int) -> None:
    candidates = all_candidates(menu(seed))
    every = list(cut_points(candidates))
    for percent in PERCENTS[seed]:
        best_s = optimum_s(seed, percent)
        for cuts in [*([m] for m in every), every[:: 1 + seed % 3], every[1::4]]:
            found = choice_cut(candidates, cuts, budget_B(seed, percent)).solve(budget_B(seed, percent))
            assert best_s is not None
            assert not found.impossible
            assert found.bound_ps <= best_s * 1e12 + len(candidates.candidates)


@pytest.mark.parametrize("seed", PERCENTS)
def test_no_schedule_of_any_choice_lives_in_less_than_the_floor(seed: int) -> None:
    floor_B = joint_floor(all_candidates(menu(seed))).floor_B
    for choice in every_choice(menu(seed)):
        assert Exhaustive(choose(menu(seed), choice), floor_B - 1).least_time_s() is None
