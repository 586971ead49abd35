"""The tables of one pool: their problems are whole, rows keep their promises, and nothing is left out unseen."""

from __future__ import annotations

import pytest
from benchmarks.offload import pool
from benchmarks.offload.depth import DEPTHS, PUBLISHED, deep
from benchmarks.offload.joint import JOINT_PART, PERCENTS, RATES_GBps
from benchmarks.offload.networks import CAPTURED, K40, NETWORKS, captured, network
from benchmarks.offload.rows import floor_B, largest, linked, ours, ours_once, result
from benchmarks.offload.steps import NoWeight, with_momentum
from benchmarks.offload.width import WIDTH_PART
from benchmarks.parts import Effort, Part, measured, wanted
from benchmarks.problem_set import load
from benchmarks.results_file import MissingRow
from msgspec.structs import replace

from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Role
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import Run
from lowtide.ir.simulate import simulate
from lowtide.planners.classic.static_offload import TensorCache
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.offload.extremes import run_once
from lowtide.profile.machines import load_machine


@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_networks_are_whole_at_any_batch(name: str) -> None:
    assert f"{CAPTURED} images" in captured(name).name
    small, large = (network(name, batch, K40.name) for batch in (8, 16))
    check_graph(large)
    for a, b in zip(small.values, large.values, strict=True):
        assert a.size_B <= b.size_B <= 2 * a.size_B
        assert not a.persistent or a.role is Role.INPUT or a.size_B == b.size_B
    peaks = [simulate(g, keep_all_schedule(g)).peak_B - g.persistent_B for g in (small, large)]
    assert peaks[0] < peaks[1] <= 2 * peaks[0]
    assert name in NETWORKS


@pytest.mark.parametrize("name", ["vgg16", "gpt2"])
def test_whole_steps_update_every_weight_once(name: str) -> None:
    plain = load(name)
    graph = with_momentum(plain, load_machine("a100"))
    check(graph, keep_all_schedule(graph))
    weights = [v for v in graph.values if v.movable and v.role is Role.PARAMETER]
    updates = [r for r in graph.recipes if r.op == "lowtide.update.sgd"]
    assert len(weights) == len(updates) == sum(v.role is Role.GRADIENT for v in plain.values)
    assert sorted(r.consumes[0].value for r in updates) == [w.id for w in weights]
    assert not any(v.role is Role.GRADIENT for v in graph.values)
    state_B = sum(v.size_B for v in graph.values if v.role is Role.STATE and v.persistent)
    assert state_B == sum(w.size_B for w in weights)
    assert floor_B(graph) < floor_B(graph, persistent_may_move=False)


def test_a_gradient_without_a_weight_is_told() -> None:
    graph = load("vgg16")
    values = tuple(replace(v, size_B=v.size_B + 4) if v.role is Role.GRADIENT else v for v in graph.values)
    with pytest.raises(NoWeight, match="mm_1"):
        with_momentum(replace(graph, values=values), load_machine("a100"))


def test_the_deep_family_is_that_of_the_paper() -> None:
    assert all((layers - 2) % 3 == 0 for layers in DEPTHS)
    assert PUBLISHED["SuperNeurons"] < max(DEPTHS)
    graph = deep(152)
    convolutions = [r for r in graph.program if graph.recipes[r].op == "aten.convolution.default"]
    assert len(convolutions) == 151 + 4  # and the linear layer makes 152; the four change the width of what is added
    with pytest.raises(KeyError, match="140, 143"):
        deep(150)


def test_what_may_only_offload_runs_nothing_twice() -> None:
    plain = load("gpt2")
    graph = run_once(plain)
    peak_B = simulate(graph, keep_all_schedule(graph)).peak_B
    outcome = TensorCache().solve(Problem(graph, peak_B * 3 // 4, machine=linked(12e9), host_budget_B=None))
    assert outcome.schedule is not None
    check(plain, outcome.schedule, peak_B * 3 // 4)
    runs = [s.recipe for s in outcome.schedule.steps if isinstance(s, Run)]
    assert len(runs) == len(set(runs))
    assert simulate(graph, keep_all_schedule(graph)) == simulate(plain, keep_all_schedule(plain))


def test_results_are_checked_and_refusals_are_told() -> None:
    graph = network("alexnet", 8, K40.name)
    plain = simulate(graph, keep_all_schedule(graph))
    kept = ours(graph, plain.peak_B, linked(4e9), work=1000)
    assert kept.time_s == pytest.approx(plain.time_s)
    assert kept.peak_B is not None
    assert kept.peak_B <= plain.peak_B
    assert kept.host_B == 0
    gpt2 = load("gpt2")
    free_B = simulate(gpt2, keep_all_schedule(gpt2)).peak_B * 99 // 100
    assert ours_once(gpt2, free_B, linked(450e9), work=1000).time_s is not None  # judged by the graph that runs twice
    assert result(TensorCache(), Problem(graph, plain.peak_B)).status.startswith("refused: ")


def test_the_largest_that_fits() -> None:
    assert largest(lambda n: n <= 37, 1 << 10, 8) == 32
    assert largest(lambda n: n <= 7, 1 << 10, 8) == 0
    assert largest(lambda _: True, 40, 8) == 40


def test_every_key_is_asked_for_and_missing_ones_are_named() -> None:
    assert len(JOINT_PART.keys) == 5 * len(PERCENTS)
    assert RATES_GBps == (4, 12, 25, 50, 450)
    assert len(pool.RUN.missing({})) == sum(len(part.keys) for part in pool.RUN.parts)
    assert wanted(WIDTH_PART, ["k40"], quick=True) == ["alexnet k40"]
    assert all(part.tables({}) == [] for part in pool.RUN.parts)
    part = _empty()
    with pytest.raises(MissingRow, match="no rows"):
        measured(part, part.keys[0], Effort())


def _empty() -> Part:
    return Part("empty", ("key",), lambda _key, _effort: [], lambda _found: [])
