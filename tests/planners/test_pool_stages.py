"""SuperNeurons' stages by name: their peaks are the paper's formulas, and each can be switched."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lowtide.ir.check import check
from lowtide.ir.graph import Graph, Group, MiniTrace, Option
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Drop, Run, Send
from lowtide.ir.simulate import simulate
from lowtide.ops.base import ALGORITHMS
from lowtide.planners.classic.superneurons import STAGES, SuperNeurons, stage_peaks
from lowtide.planners.keep_all import keep_all_schedule
from tests.planners.tape import MIB, Tape
from tests.planners.test_static_policies import machine


def layers(sizes: list[int], ops: list[str]) -> Graph:
    """A chain of layers that save what they read, in MiB; their backwards take it, a gradient, and bring another.

    Only the first layer has a weight, so no other gradient is left.
    """
    tape = Tape("layers")
    tape.segment("forward")
    x = tape.given(MIB)
    for k, (size, op) in enumerate(zip(sizes, ops, strict=True)):
        x = tape.op(op, (x,), size * MIB, 1e-3, weight_B=0 if k else 64)
    tape.backward(x)
    return tape.graph()


def peaks_by_formula(sizes: list[int], ops: list[str]) -> tuple[int, int, int, int]:
    """The paper's sums in MiB: nothing freed, liveness, pool, largest layer.

    Layer k brings f[k]; its backward reads f[k - 1], its gradient, and brings the gradient of what it read. The data
    and the last output are the caller's, and are kept.
    """
    f = [1, *sizes]
    n = len(f) - 1
    everything = sum(f) + sum(f[1:])
    liveness = sum(f) + f[n] + f[n - 1]
    lifetimes = [1, *(0 if op == "conv" else size for op, size in zip(ops[:-1], sizes[:-1], strict=True))]
    backward = [
        f[n] + sum(lifetimes[:k]) + (f[k - 1] - lifetimes[k - 1]) + f[k] + (f[k - 1] if k > 1 else 0)
        for k in range(1, n + 1)
    ]
    forward = [sum(lifetimes[:k]) + (f[k - 1] - lifetimes[k - 1]) + f[k] for k in range(1, n + 1)]
    largest = max(f[k] + f[k - 1] + f[k] + (f[k - 1] if k > 1 else 0) for k in range(1, n + 1))
    return everything, liveness, max(*backward, *forward), largest


CHAINS = {
    "even": ([4] * 9, ["conv", "norm", "relu"] * 3),
    "uneven": ([8, 8, 2, 6, 6, 6, 3, 3], ["conv", "relu", "pool", "conv", "norm", "relu", "conv", "relu"]),
    "all heavy": ([5] * 6, ["conv"] * 6),
}


@pytest.mark.parametrize("name", CHAINS)
def test_peaks_are_the_formulas(name: str) -> None:
    sizes, ops = CHAINS[name]
    graph = layers(sizes, ops)
    everything, liveness, pool, largest = (n * MIB for n in peaks_by_formula(sizes, ops))
    found = stage_peaks(graph)
    small_B = 128  # of the one weight and its gradient
    assert 0 <= found.everything_B - everything <= small_B
    assert 0 <= found.liveness_B - liveness <= small_B
    assert 0 <= found.pool_B - pool <= small_B
    assert 0 <= found.largest_layer_B - largest <= small_B
    assert found.liveness_B >= found.pool_B >= found.recomputation_B >= found.cache_B


def test_with_recomputation_a_chain_needs_its_largest_layer() -> None:
    sizes, ops = [4] * 9, ["conv", "norm", "relu"] * 3
    found = stage_peaks(layers(sizes, ops))
    caller_B = 5 * MIB  # the data and the last output are not the network's to free
    assert found.largest_layer_B <= found.recomputation_B <= found.largest_layer_B + caller_B
    deeper = stage_peaks(layers([4] * 45, ["conv", "norm", "relu"] * 15))
    assert deeper.recomputation_B == found.recomputation_B
    assert deeper.pool_B > found.pool_B


def solve(graph: Graph, budget_B: int, *stages: str) -> Outcome:
    asked = Problem(graph, budget_B, machine=machine(1e11), host_budget_B=None)
    outcome = SuperNeurons(stages).solve(asked)
    if outcome.schedule is not None:
        check(graph, outcome.schedule, budget_B)
        assert outcome.bound_s <= simulate(graph, outcome.schedule, asked.machine).time_s
    return outcome


def test_stages_are_switched_one_by_one() -> None:
    graph = layers(*CHAINS["even"])
    peaks = stage_peaks(graph)
    for stages, least_B in (
        ((), peaks.everything_B),
        (STAGES[:1], peaks.liveness_B),
        (STAGES[:2], peaks.cache_B),
    ):
        assert solve(graph, least_B, *stages).schedule is not None
        assert solve(graph, least_B - 1, *stages).schedule is None
    nothing = solve(graph, peaks.everything_B)
    assert nothing.schedule is not None
    assert not any(isinstance(s, Drop) for s in nothing.schedule.steps)
    recomputed = solve(graph, peaks.liveness_B - 1, "liveness", "recomputation")
    assert recomputed.schedule is not None
    assert not any(isinstance(s, Send) for s in recomputed.schedule.steps)
    runs = [s.recipe for s in recomputed.schedule.steps if isinstance(s, Run)]
    assert len(runs) > len(set(runs))
    both = solve(graph, peaks.recomputation_B, *STAGES)
    assert both.schedule is not None


def test_stages_that_there_are_not_are_refused() -> None:
    asked = Problem(layers(*CHAINS["even"]), 1, machine=machine(), host_budget_B=None)
    assert "'swap'" in str(SuperNeurons(("liveness", "swap")).refuses(asked))
    assert "build on liveness" in str(SuperNeurons(("pool",)).refuses(asked))
    assert SuperNeurons(("liveness", "recomputation")).refuses(Problem(asked.graph, 1)) is None
    assert SuperNeurons().refuses(Problem(asked.graph, 1)) is not None


def with_algorithms(graph: Graph, workspace_B: int) -> Graph:
    """Each convolution runs twice as fast where a workspace is free."""
    recipes, groups = list(graph.recipes), []
    for recipe in graph.recipes:
        if recipe.op == "conv":
            size_B = graph.values[recipe.outputs[0]].size_B
            trace = MiniTrace((workspace_B, size_B, -1), (1,), measured=True)
            faster = replace(recipe, id=len(recipes), time_s=recipe.time_s / 2, trace=trace)
            recipes.append(faster)
            options = (Option("program", (recipe.id,)), Option("fast", (faster.id,)))
            groups.append(Group(f"convolution algorithms {recipe.id}", options, ALGORITHMS))
    return replace(graph, recipes=tuple(recipes), groups=tuple(groups))


def test_workspaces_take_what_is_left() -> None:
    graph = with_algorithms(layers(*CHAINS["even"]), 30 * MIB)
    plain = simulate(graph, keep_all_schedule(graph))
    roomy = solve(graph, plain.peak_B + 30 * MIB, "liveness", "workspaces")
    assert roomy.status is Status.OPTIMAL
    assert roomy.schedule is not None
    assert simulate(graph, roomy.schedule).time_s == pytest.approx(plain.time_s - 3 * 0.5e-3)
    tight = solve(graph, plain.peak_B, "liveness", "workspaces")
    assert tight.schedule is not None
    assert simulate(graph, roomy.schedule).time_s < simulate(graph, tight.schedule).time_s < plain.time_s
    off = solve(graph, plain.peak_B, "liveness")
    assert off.schedule is not None
    assert simulate(graph, off.schedule).time_s == plain.time_s
