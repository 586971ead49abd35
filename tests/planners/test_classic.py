"""The classical methods against what is known of them: formulas, other methods' optima, published figures."""

from __future__ import annotations

import functools
import math

import pytest
from benchmarks.planning.checkmate_baselines import (
    articulation_points,
    baseline,
    every_root,
    greedy,
    published_revolve,
    split_799,
)
from benchmarks.planning.checkmate_models import VGG16, mobilenet, resnet50, training, vgg, vgg_unet

from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, Role
from lowtide.ir.plan import Problem, Status
from lowtide.ir.schedule import Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.chain.chain import chain_of
from lowtide.planners.chain.forward import forwards
from lowtide.planners.classic.chen import CheckpointAll, ChenGreedy, ChenSqrt
from lowtide.planners.classic.revolve import Revolve, RevolveBlocks, advances, beta, revolve, split
from lowtide.planners.classic.rotor import Rotor
from lowtide.planners.classic.superneurons import CostAware, MemoryCentric, SpeedCentric, segments
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import stage_program
from tests.planners.tape import MIB, Tape, chain, gpt, resnet, unet


def masked_chain(steps: int, op: str = "f", saves: str = "mask") -> Graph:
    """A chain whose backward reads a mask of every step and nothing else, so that every step has to be recomputed."""
    tape = Tape("masked")
    tape.segment("forward")
    x = tape.given(MIB)
    for _ in range(steps):
        x = tape.op(op, (x,), MIB, 1e-3, saves=saves, mask_B=64, weight_B=64)
    tape.backward(x)
    return tape.graph()


def recomputations(schedule: Schedule) -> int:
    """How many runs are not first ones."""
    runs = [s.recipe for s in schedule.steps if isinstance(s, Run)]
    return len(runs) - len(set(runs))


def solve(planner: AbstractPlanner, graph: Graph, budget_B: int) -> Schedule:
    outcome = planner.solve(Problem(graph, budget_B))
    assert outcome.schedule is not None
    check(graph, outcome.schedule, budget_B)
    return outcome.schedule


@functools.cache
def fewest(steps: int, slots: int) -> int:
    """The recurrence behind the binomial formula."""
    if steps == 1:
        return 0
    if slots == 1:
        return steps * (steps - 1) // 2
    return min(m + fewest(steps - m, slots - 1) + fewest(m, slots) for m in range(1, steps))


def test_the_binomial_formula_is_the_recurrence_and_every_split_is_a_best_one() -> None:
    assert [beta(3, r) for r in range(4)] == [1, 4, 10, 20]
    for steps in range(1, 60):
        for slots in range(1, 8):
            assert advances(steps, slots) == fewest(steps, slots)
            if steps > 1:
                m = split(steps, slots)
                rest = fewest(steps - m, slots - 1) if slots > 1 else 0
                assert m + rest + fewest(m, slots) == advances(steps, slots)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 11])
def test_revolve_reruns_as_often_as_the_formula_says(slots: int) -> None:
    program = stage_program(masked_chain(20))
    state = program.keep_all(0)
    assert state.assign(revolve(chain_of(program), slots))
    schedule = program.lift(state)
    check(program.graph, schedule)
    assert recomputations(schedule) == advances(20, slots)


def test_the_square_root_takes_memory_like_the_square_root() -> None:
    for steps in (16, 64, 144, 256):
        graph = masked_chain(steps, saves="in mask")
        everything_B = stage_program(graph).keep_all(0).peak_B
        outcome = ChenSqrt().solve(Problem(graph, everything_B // 2))
        peak_B = outcome.smallest_B if outcome.schedule is None else simulate(graph, outcome.schedule).peak_B
        assert peak_B is not None
        assert everything_B > steps * MIB
        assert peak_B <= (2 * math.isqrt(steps) + 5) * MIB
        if outcome.schedule is not None:
            assert recomputations(outcome.schedule) <= steps


def test_articulation_points_are_where_all_paths_meet() -> None:
    (half,) = forwards(stage_program(resnet((1, 1, 1, 1))))
    program = half.program
    ops = [program.graph.recipes[program.stages[t].recipe].op for t in half.articulation_points]
    # The stem, then per block: the addition, and the rectifier behind it; then the head.
    assert ops == ["conv", "batch_norm", "relu", *["add", "relu"] * 4, "pool", "loss"]
    assert "moved_mean" not in {program.graph.recipes[program.stages[t].recipe].op for t in half.trunk}
    (half,) = forwards(stage_program(chain(5)))
    assert half.articulation_points == half.stages


def test_checkpointing_all_points_brings_back_each_block_once() -> None:
    graph = resnet((1, 1, 1, 1))
    program = stage_program(graph)
    (half,) = forwards(program)
    inner = set(half.trunk) - set(half.articulation_points)
    schedule = solve(CheckpointAll(), graph, program.keep_all(0).peak_B - 1)
    runs = [s.recipe for s in schedule.steps if isinstance(s, Run)]
    again = {r for r in runs if runs.count(r) > 1}
    assert again
    assert again <= {program.stages[t].recipe for t in inner}
    assert recomputations(schedule) == len(again)


def buffered_chain() -> Graph:
    """A chain whose steps read copies of buffers that change at the end of the forward, and labels at its end."""
    tape = Tape("buffered")
    tape.segment("forward")
    x = tape.given(MIB)
    for _ in range(9):
        buffer = tape.value(64, Role.BUFFER, arrives=0, persistent=True, readable_through=0)
        copy = tape.op("clone", (buffer,), 64, 1e-6, saves="")
        x = tape.op("norm", (x, copy), MIB, 1e-3, saves="in", weight_B=64)
        x = tape.op("relu", (x,), MIB, 1e-4, saves="out")
    labels = tape.op("shift", (tape.given(64),), 64, 1e-6, saves="")
    tape.backward(tape.op("loss", (x, labels), 4, 1e-6, saves="in"))
    return tape.graph()


def test_copies_of_buffers_and_labels_are_outside_the_chain_and_are_kept() -> None:
    graph = buffered_chain()
    check_graph(graph)
    program = stage_program(graph)
    (half,) = forwards(program)
    ops = [graph.recipes[program.stages[t].recipe].op for t in half.articulation_points]
    assert ops == [*["norm", "relu"] * 9, "loss"]
    budget_B = program.keep_all(0).peak_B * 70 // 100
    for planner in (ChenSqrt(), ChenGreedy(), Revolve(), RevolveBlocks(), Rotor()):
        assert recomputations(solve(planner, graph, budget_B)) > 0


def test_methods_for_chains_say_what_is_no_chain() -> None:
    assert "leads past" in str(Revolve().refuses(Problem(unet(2), 1)))
    assert RevolveBlocks().refuses(Problem(gpt(2), 1)) is None
    for planner in (Revolve(), RevolveBlocks(), Rotor()):
        assert "bundle of 2 parts" in str(planner.refuses(Problem(chain(4, parts=2), 1)))
    assert "7 links" in str(Rotor(most_links=6).refuses(Problem(chain(6), 1)))


@pytest.mark.parametrize("percent", [80, 60, 45, 35])
def test_rotor_is_no_slower_than_revolve_and_near_the_optimum_on_chains(percent: int) -> None:
    graph = chain(24)
    budget_B = stage_program(graph).keep_all(0).peak_B * percent // 100
    rotor_s = simulate(graph, solve(Rotor(), graph, budget_B)).time_s
    assert rotor_s <= simulate(graph, solve(Revolve(), graph, budget_B)).time_s + 1e-12
    best = Portfolio().solve(Problem(graph, budget_B))
    assert best.schedule is not None
    assert best.bound_s - 1e-9 <= rotor_s <= 1.05 * simulate(graph, best.schedule).time_s


def cheap_segments() -> Graph:
    """Two convolutions with four cheap layers behind each."""
    tape = Tape("segments")
    tape.segment("forward")
    x = tape.given(MIB)
    for _ in range(2):
        x = tape.op("conv", (x,), MIB, 1e-3, weight_B=64)
        for _ in range(4):
            x = tape.op("relu", (x,), MIB, 1e-4, saves="out")
    tape.backward(tape.op("linear", (x,), 4, 1e-3, weight_B=64))
    return tape.graph()


def test_superneurons_rebuilds_segments_at_once_or_layer_by_layer() -> None:
    graph = cheap_segments()
    program = stage_program(graph)
    (half,) = forwards(program)
    assert [len(segment) for segment in segments(half)] == [4, 4]
    budget_B = program.keep_all(0).peak_B - 1
    speed = solve(SpeedCentric(), graph, budget_B)
    assert recomputations(speed) == 8  # each cheap layer once
    memory = solve(MemoryCentric(), graph, budget_B)
    assert recomputations(memory) > 8
    assert simulate(graph, memory).peak_B <= simulate(graph, speed).peak_B
    cost = solve(CostAware(), graph, budget_B)
    assert recomputations(speed) <= recomputations(cost) <= recomputations(memory)
    ops = {graph.recipes[s.recipe].op for s in memory.steps if isinstance(s, Run)}
    runs = [s.recipe for s in memory.steps if isinstance(s, Run) and graph.recipes[s.recipe].op == "conv"]
    assert "relu" in ops
    assert len(runs) == 2  # what computes much is never recomputed


def test_copies_of_buffers_are_no_joins_to_superneurons() -> None:
    graph = buffered_chain()
    (half,) = forwards(stage_program(graph))
    ops = [[graph.recipes[half.program.stages[t].recipe].op for t in segment] for segment in segments(half)]
    assert ops == [["norm", "relu"] * 9 + ["loss"]]


def test_where_nothing_fits_the_smallest_budget_of_the_method_is_told() -> None:
    graph = gpt(2)
    budget_B = stage_program(graph).keep_all(0).peak_B * 56 // 100
    outcome = ChenSqrt().solve(Problem(graph, budget_B))
    assert outcome.status is Status.UNSOLVED
    assert outcome.smallest_B is not None
    again = ChenSqrt().solve(Problem(graph, outcome.smallest_B))
    assert again.schedule is not None
    check(graph, again.schedule, outcome.smallest_B)


def test_vgg19_in_the_layer_model_has_the_published_figures() -> None:
    """The billions of multiplications and megabytes that Checkmate's authors print for batch 1."""
    layers = vgg()
    every = tuple(range(len(layers)))
    graph = training(layers, "vgg19")
    check_graph(graph)
    for schedule, time, size in (
        (baseline(graph, every), 58.896, 81.723),
        (baseline(graph, every_root(every)), 72.513, 69.448),
        (published_revolve(graph, 5), 108.267, 51.380),
    ):
        check(graph, schedule)
        timeline = simulate(graph, schedule)
        assert round(timeline.time_s * 1e3, 3) == time
        assert round(timeline.peak_B / 1e6, 3) == size
    # Without what they hold needlessly, keeping everything takes less.
    assert simulate(graph, keep_all_schedule(graph)).peak_B < 67e6


def test_the_layer_models_have_the_parameters_of_their_networks() -> None:
    counts = {vgg(VGG16): 138_357_544, vgg(): 143_667_240, mobilenet(): 4_253_864, resnet50(): 25_636_712}
    for layers, count in counts.items():
        assert sum(layer.parameters for layer in layers) == count


def test_published_baselines_on_graphs_with_skips() -> None:
    """The largest batch for which U-Net's articulation points, and its layers, can be checkpointed on 16 GB."""
    layers = vgg_unet()
    graph = training(layers, "unet")
    points = articulation_points(layers)
    assert len(points) < len(layers)
    free_B = 16e9 - 8 * sum(layer.parameters for layer in layers)
    for checkpoints, batch in ((points, 16), (range(len(layers)), 22)):
        schedule = baseline(graph, checkpoints)
        check(graph, schedule)
        assert free_B // simulate(graph, schedule).peak_B == batch
    sets = [greedy(layers, points, k * 50e6) for k in range(8)]
    assert all(set(a) <= set(points) for a in sets)
    assert len(sets[0]) > len(sets[-1])


def test_algorithm_799_splits_as_well_as_any() -> None:
    for steps in range(2, 60):
        for slots in range(2, 8):
            m = split_799(steps, slots)
            assert m + fewest(steps - m, slots - 1) + fewest(m, slots) == advances(steps, slots)


def test_vgg19_at_the_published_budget() -> None:
    graph = training(vgg(), "vgg19")
    budget_B = 51_380_224
    outcome = Portfolio().solve(Problem(graph, budget_B))
    assert outcome.status is Status.OPTIMAL
    assert outcome.schedule is not None
    assert round(simulate(graph, outcome.schedule).time_s * 1e3, 3) == 58.983
    assert round(simulate(graph, solve(Rotor(), graph, budget_B)).time_s * 1e3, 3) == 58.983
    for planner in (Revolve(), ChenGreedy()):
        assert simulate(graph, solve(planner, graph, budget_B)).time_s > 0.0589829
