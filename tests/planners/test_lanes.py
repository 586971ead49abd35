"""Two searches at once: the same result however they are sliced, and nothing left behind when they end."""

from __future__ import annotations

import threading

import msgspec
import pytest

from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.planners import annealing, cuts, portfolio
from lowtide.planners.base import Progress
from lowtide.planners.clock import Deadline, OutOfTime
from lowtide.planners.concurrent import Concurrent
from lowtide.planners.cuts import CutLimits, CutsFound
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.search import Search
from tests.planners.tape import gpt, resnet, unet

TIGHT = {"gpt": (gpt(4), 50), "resnet": (resnet((1, 1, 1, 1)), 60), "unet": (unet(4), 50)}


def problem(name: str, work: int = 20_000) -> Problem:
    graph, percent = TIGHT[name]
    return Problem(graph, stage_program(graph).keep_all(0).peak_B * percent // 100, work=work)


def without_clock(outcome: Outcome) -> Outcome:
    stats = {k: v for k, v in outcome.stats.items() if not k.endswith("_s")}
    return msgspec.structs.replace(outcome, stats=stats)


@pytest.mark.parametrize("name", TIGHT)
def test_how_lanes_are_sliced_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (100, 1 << 14):
        monkeypatch.setattr(annealing, "_MOST", most)
        found.append(without_clock(Portfolio().solve(problem(name))))
    assert found[0] == found[1]


@pytest.mark.parametrize("stage", ["single_cut", "chain", "multi_cut", "annealing"])
def test_ctrl_c_leaves_no_thread_behind(stage: str) -> None:
    def interrupt(progress: Progress) -> None:
        reached.add(progress.stage)
        if progress.stage == stage:
            raise KeyboardInterrupt

    reached: set[str] = set()
    before = set(threading.enumerate())
    try:
        outcome = Portfolio().solve(problem("unet"), interrupt)
        assert outcome.status is Status.INTERRUPTED
    except KeyboardInterrupt:
        pass
    assert stage in reached
    assert set(threading.enumerate()) == before


def test_an_error_concurrent_with_the_search_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> CutsFound:
        raise ValueError("the cuts failed")

    monkeypatch.setattr("lowtide.planners.portfolio.find_cuts", fail)
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="the cuts failed"):
        Portfolio().solve(problem("unet"))
    assert set(threading.enumerate()) <= before


def test_who_leaves_without_the_result_stops_the_work() -> None:
    stopped = threading.Event()

    def work(stop: threading.Event) -> None:
        if stop.wait(10.0):
            stopped.set()

    with Concurrent(work):
        pass
    assert stopped.is_set()


def test_cuts_end_when_they_are_stopped() -> None:
    graph: Graph = resnet((3, 4, 6, 3))
    program = stage_program(graph)
    budget_B = program.keep_all(0).peak_B * 35 // 100
    stop = threading.Event()
    stop.set()
    assert cuts.find_cuts(program, budget_B, budget_B, CutLimits(stop=stop)).solves == 0
    assert cuts.find_cuts(program, budget_B, budget_B, CutLimits(deadline=Deadline(0.0))).solves == 0


def test_what_cuts_have_proved_holds_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_time(*_: object) -> None:
        raise OutOfTime

    proved_ps = 10**12  # a second: more than any other bound here
    monkeypatch.setattr(portfolio, "find_cuts", lambda *_: CutsFound(proved_ps, False, (), 1))
    monkeypatch.setattr(portfolio, "anneal_lanes", out_of_time)
    outcome = Portfolio().solve(problem("unet"))
    assert outcome.stats["out_of_time"]
    assert outcome.stats["cut_solves"] == 1
    assert outcome.bound_s > 0.99


def test_cuts_that_prove_a_budget_impossible_say_so() -> None:
    search = Search(problem("unet"))
    cuts.take(search, CutsFound(0.0, True, (), 1))
    assert search.outcome("portfolio").status is Status.INFEASIBLE
