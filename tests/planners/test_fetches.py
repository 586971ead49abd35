"""Values that come back by fetch: the kernel against its readable twin, and schedules that send, fetch and drop."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lowtide import _core
from lowtide.errors import PlanError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, Role
from lowtide.ir.housing import housed, movable_values
from lowtide.ir.schedule import DEVICE, HOST, Drop, Fetch, Run, Schedule, Send
from lowtide.ir.simulate import simulate
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.reductions.stages import StageProgram, stage_program
from tests.planners.candidates import with_candidates
from tests.planners.priced_brute_force import FETCH_ps_per_B, OffloadOptions, SEND_ps_per_B
from tests.planners.tape import Tape, chain, gpt, random_graph, resnet, unet
from tests.planners.test_retention import assert_same, plain_peak_B, random_change
from tests.planners.training import with_updates


def at_host(graph: Graph, seed: int) -> Graph:
    """Some host-resident values."""
    dice = random.Random(seed)
    return housed(graph, [v for v in movable_values(graph) if dice.random() < 0.6])


def everywhere(graph: Graph) -> Graph:
    """All values that can be host-resident."""
    return housed(graph, movable_values(graph))


GRAPHS = [
    *(pytest.param(lambda s=s: random_graph(s, 6 + s % 12, 1 + s % 3), id=f"random{s}") for s in range(18)),
    *(pytest.param(lambda s=s: with_candidates(random_graph(s, 14, 2, True)), id=f"mirrored{s}") for s in range(12)),
    pytest.param(lambda: chain(5, parts=2), id="bundle"),
    pytest.param(lambda: with_candidates(chain(5, parts=2)), id="bundle-candidates"),
    pytest.param(lambda: gpt(2), id="gpt"),
    pytest.param(lambda: with_candidates(resnet((1, 1)), ("relu", "add")), id="resnet-candidates"),
    *(pytest.param(lambda s=s: at_host(with_updates(chain(5)), s), id=f"step{s}") for s in range(4)),
    pytest.param(lambda: everywhere(with_updates(gpt(1), states=2)), id="gpt-step"),
    pytest.param(lambda: everywhere(with_updates(chain(4), at_end=True, merged=True)), id="at-end"),
    pytest.param(lambda: everywhere(with_updates(chain(4), engine="host")), id="updates-on-host"),
    pytest.param(lambda: at_host(with_updates(unet(2), states=0), 2), id="unet-step"),
]


def some_movable(graph: Graph, dice: random.Random) -> list[int]:
    return [v for v in sorted(fetchable_values(graph, 1)) if dice.random() < 0.7]


@pytest.mark.parametrize("make", GRAPHS)
def test_kernel_oracle_and_simulator_agree(make) -> None:
    graph = make()
    dice = random.Random(1)
    reduced = stage_program(graph, movable=some_movable(graph, dice))
    state = reduced.keep_all(stage_program_peak_B(graph) // 2)
    assert_same(reduced, state)
    for _ in range(18):
        gaps, retention = random_change(reduced.core, dice)
        before = state.taus.copy()
        if not state.apply(gaps, retention):
            np.testing.assert_array_equal(state.taus, before)
        elif dice.random() < 0.4:
            state.undo()
            np.testing.assert_array_equal(state.taus, before)
        else:
            state.commit()
        assert_same(reduced, state)
        assert_lifted(reduced, state)
    assert state.is_valid()


def stage_program_peak_B(graph: Graph) -> int:
    return stage_program(graph, movable=()).keep_all(0).peak_B


def assert_lifted(reduced: StageProgram, state: _core.Retention) -> None:
    """The schedule is legal within the kernel's peak, takes its time, and copies what it says."""
    graph = reduced.graph
    schedule = reduced.lift(state)
    check(graph, schedule, budget_B=state.peak_B + reduced.reserve_B)
    timeline = simulate(graph, schedule)
    peak_B = plain_peak_B(reduced, schedule)
    assert peak_B == state.peak_B
    assert_moves(reduced, state, schedule)
    compute_s = sum(m.stop_s - m.start_s for m in timeline.instants if m.engine == "compute")
    assert compute_s >= state.compute_ps * 1e-12 - 1e-9


def assert_moves(reduced: StageProgram, state: _core.Retention, schedule: Schedule) -> None:
    assert moved_B(reduced.graph, schedule, Send) == state.sent_B + reduced.movement.sent_B(reduced.graph)
    assert moved_B(reduced.graph, schedule, Fetch) == state.fetched_B


def moved_B(graph: Graph, schedule: Schedule, kind: type) -> int:
    return sum(graph.values[s.value].size_B for s in schedule.steps if isinstance(s, kind))


def one_value() -> tuple[Graph, int]:
    """a is read at once, and again behind something large."""
    tape = Tape()
    tape.segment("forward")
    x = tape.given(4, persistent=True)
    a, b, c, d = (tape.value(size_B) for size_B in (8, 4, 100, 4))
    for op, reads, made in (("a", (x,), a), ("b", (a,), b), ("c", (b,), c), ("d", (a, c), d)):
        tape.recipe(op, reads, (made,), 1.0)
    tape.leave(d, 0, Role.OUTPUT)
    return tape.graph(), a


def test_what_is_fetched_is_sent_when_it_is_made_and_dropped_after_its_use() -> None:
    graph, a = one_value()
    reduced = stage_program(graph, movable=[a])
    state = reduced.keep_all(0)
    gap = reduced.core.gap_at(reduced.values.index(a), 3)
    assert state.apply([gap], [~(reduced.core.gap_start(gap) + 1)])
    steps = reduced.lift(state).steps
    run = {graph.recipes[s.recipe].op: i for i, s in enumerate(steps) if isinstance(s, Run)}
    send, fetch = (next(i for i, s in enumerate(steps) if isinstance(s, kind)) for kind in (Send, Fetch))
    drop = steps.index(Drop(a, DEVICE, (send,)))
    assert run["a"] < send < run["b"] < drop < run["c"] < fetch < run["d"]
    assert steps[fetch + 1] == Drop(a, HOST, (fetch,))
    assert state.compute_ps == reduced.time_ps
    assert (state.sent_B, state.fetched_B) == (8, 8)
    reduced.core.set_prices(1e12, 2e12)
    assert state.time_ps == reduced.time_ps + 24 * 10**12


def test_a_host_resident_weight_is_fetched_and_sent_back_when_it_is_updated() -> None:
    graph = everywhere(with_updates(chain(1), states=0))
    reduced = stage_program(graph, movable=())
    state = reduced.keep_all(0)
    weight = next(v.id for v in graph.values if v.persistent and v.movable)
    new = next(v.id for v in graph.values if v.replaces == weight)
    steps = reduced.lift(state).steps
    assert [s.value for s in steps if isinstance(s, Fetch)] == [weight]
    send = next(i for i, s in enumerate(steps) if isinstance(s, Send))
    assert steps[send : send + 2] == (Send(new, HOST, (send - 1,)), Drop(new, DEVICE, (send,)))
    assert reduced.movement.sent_B(reduced.graph) == graph.values[new].size_B
    # It may leave in between.
    gap = reduced.core.gap_at(reduced.values.index(weight), len(reduced.stages) - 2)
    assert state.apply([gap], [~(reduced.core.gap_start(gap) + 1)])
    assert len([s for s in reduced.lift(state).steps if isinstance(s, Fetch)]) == 2
    assert state.fetched_B == 2 * graph.values[weight].size_B


def test_what_cannot_be_planned_is_refused() -> None:
    graph = everywhere(with_updates(chain(2)))
    with pytest.raises(PlanError, match="is host-resident; this planner offloads nothing"):
        stage_program(graph)
    with pytest.raises(PlanError, match="runs on the host; this planner offloads nothing"):
        stage_program(with_updates(chain(2), engine="host"))
    with pytest.raises(PlanError, match=r"makes .* on the host, and it leaves on the device"):
        stage_program(with_updates(chain(2), engine="host"), movable=())
    core = stage_program(chain(2)).core
    free = next(g for g in range(len(core.gap_value)) if core.is_free(g))
    with pytest.raises(ValueError, match="a tau that its gap cannot have"):
        stage_program(chain(2)).keep_all(0).apply([free], [~(core.gap_start(free) + 1)])
    for price in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="price"):
            core.set_prices(0.0, price)


def test_a_price_of_nothing_makes_a_tight_plan_as_fast_as_keeping_everything() -> None:
    graph = chain(12)
    reduced = stage_program(graph, movable=fetchable_values(graph))
    budget_B = int(reduced.core.operator_floors().max()) * 1001 // 1000  # what is too small to offload is there too
    state = reduced.keep_all(budget_B)
    assert _core.Greedy(state).run(1000)
    assert state.fits
    assert state.time_ps == reduced.time_ps
    check(graph, reduced.lift(state), budget_B=budget_B)


TIGHT = [(4, 4), (4, 17), (4, 19), (4, 23), (4, 24), (4, 39), (5, 8), (5, 22), (5, 28)]


@pytest.mark.parametrize(("recipes", "seed"), TIGHT)
def test_the_search_finds_what_trying_everything_finds(recipes: int, seed: int) -> None:
    graph = random_graph(seed, recipes, 1, mirrored=True)
    movable = frozenset(sorted(fetchable_values(graph, 1))[:3])
    reduced = stage_program(graph, movable=movable)
    reduced.core.set_prices(SEND_ps_per_B, FETCH_ps_per_B)
    budget_B = max(int(reduced.core.operator_floors().max()), reduced.keep_all(0).peak_B - 4 * 8192)
    assert reduced.reserve_B == 0
    annealer = _core.Annealer(reduced.keep_all(budget_B), 1, 6000, 3.0, 0.01)
    annealer.run(6000)
    best_ps = float(annealer.best_time_ps) if annealer.found else None
    assert best_ps == pytest.approx(OffloadOptions(graph, budget_B, movable).least_ps(), abs=1.0)
