"""The clock of a solve: limits, what is close enough, who is told; and how long a search may last to pay for itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lowtide.ir.plan import DEFAULT_WORK, Problem, Status
from lowtide.ir.simulate import simulate
from lowtide.planners.base import Progress
from lowtide.planners.clock import STEPS, Clock, Deadline, OutOfTime, worth_s
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from tests.planners.menus import MENUS


@dataclass
class Found:
    """What a search has come to."""

    time_ps: float | None = None
    work: int = 0


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_deadline_has_parts() -> None:
    whole = Deadline(100.0)
    assert whole.part(0.4).limit_s == 40.0
    assert whole.part(0.4).began_s == whole.began_s
    assert 50.0 <= (whole.rest(0.5).limit_s or 0.0) < 100.0
    assert not whole.is_over
    assert whole.part(0.0).is_over
    assert Deadline().rest(0.5).left_s is None
    assert not Deadline().part(0.0).is_over


def test_time_stops_a_solve_and_is_told_of() -> None:
    clock = Clock(Deadline(0.0), Found(), 1e12)
    with pytest.raises(OutOfTime):
        clock.tick()
    clock.conduct(clock.tick)
    assert clock.stats["out_of_time"]
    assert clock.status(impossible=False) is Status.UNSOLVED
    assert clock.status(impossible=True) is Status.INFEASIBLE


def test_ctrl_c_keeps_a_plan_where_there_is_one() -> None:
    found = Found()
    clock = Clock(Deadline(), found, 1e12, bound_ps=1e12)
    with pytest.raises(KeyboardInterrupt):
        clock.conduct(interrupt)
    found.time_ps = 2e12
    clock.conduct(interrupt)
    assert clock.status(impossible=False) is Status.INTERRUPTED
    clock.prove(2e12)
    assert clock.status(impossible=False) is Status.OPTIMAL


def test_what_is_close_to_the_bound_is_enough() -> None:
    found = Found()
    clock = Clock(Deadline(), found, 1e12, bound_ps=1e12)
    assert not clock.is_close()
    found.time_ps = 1.004e12
    assert clock.is_close()
    clock.prove(0.5e12)  # less than is proved already
    assert clock.is_close()
    assert clock.proved_s(1000) < 1.0 - 1e-9


def test_a_search_below_is_told_of_as_part_of_the_whole() -> None:
    told: list[Progress] = []
    clock = Clock(Deadline(), Found(3e12, 10), 1e12, told.append, bound_ps=1e12, stage="cut")
    below = Progress("annealing", 0.0, 2.0, 0.5, 7)
    clock.relay(below)
    clock.relay(below, counts=False)
    assert [(p.stage, p.time_s, p.bound_s, p.work) for p in told] == [("cut", 2.0, 1.0, 10), ("cut", 3.0, 1.0, 17)]


def test_what_may_be_gained_in_training_is_worth_searching_for() -> None:
    assert worth_s(3e9, 1e9, DEFAULT_WORK) == 2e-3 * STEPS
    assert worth_s(3e9, 1e9, 2 * DEFAULT_WORK) == 4e-3 * STEPS
    assert worth_s(1e9, 1e9, DEFAULT_WORK) == 0.0


@pytest.mark.parametrize("name", MENUS)
def test_with_little_work_few_choices_are_asked(name: str) -> None:
    """Where there is a plan to begin with, no question follows the one that uses the work up."""
    graph = MENUS[name]()
    budget_B = int(0.8 * simulate(graph, keep_all_schedule(graph)).peak_B)
    begun = FirstPlan().solve(Problem(graph, budget_B)).schedule
    assert begun is not None
    asked = {}
    for work in (100, 100_000):
        stats = Portfolio().solve(Problem(graph, budget_B, work=work, start=begun)).stats
        asked[work] = stats.get("joint_cuts", 0) + stats.get("flips", 0)
    assert asked[100] <= min(1, asked[100_000])
