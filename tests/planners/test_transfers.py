"""When copies run: within both budgets, never later than naively, as well as possible on what is small."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest

from lowtide.errors import IllegalPlan
from lowtide.ir.call import Read
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Value
from lowtide.ir.machine import Machine
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.offload.transfers import timing
from lowtide.planners.offload.waits import with_waits
from tests.planners.offloading import linked, offloaded
from tests.planners.tape import NAMED, random_graph

GRAPHS: dict[str, Callable[[], Graph]] = {
    **NAMED,
    **{f"random{s}": functools.partial(random_graph, s, 14, 1 + s % 3, True) for s in range(6)},
}
B = 1000


def there_and_back(runs_s: tuple[float, ...], sizes_B: tuple[int, ...]) -> Graph:
    """Runs one after another; the first ones make a value each, which the last ones read in the opposite order.

    What is between them makes as many bytes as all of these together, for itself alone. Each run reads an empty value
    that the one before makes.
    """
    count, steps = len(sizes_B), len(runs_s)
    values = [Value(i, f"saved{i}", size_B, Role.ACTIVATION) for i, size_B in enumerate(sizes_B)]
    values += [Value(count + t, f"token{t}", 0, Role.ACTIVATION) for t in range(steps)]
    values[-1] = msgspec.structs.replace(values[-1], role=Role.OUTPUT, leaves=0)
    recipes = []
    for t, time_s in enumerate(runs_s):
        made = (t, count + t) if t < count else (count + t,)
        read: tuple[int, ...] = (count + t - 1,) if t else ()
        read += (steps - 1 - t,) if t >= steps - count else ()
        events: tuple[int, ...] = (sizes_B[t],) if t < count else ()
        if count <= t < steps - count:
            events = (sum(sizes_B), -1)
        trace = MiniTrace(events, (0, None) if t < count else (None,))
        recipes.append(Recipe(t, f"run{t}", made, tuple(map(Read, read)), time_s=time_s, trace=trace))
    return Graph(tuple(values), tuple(recipes), tuple(range(steps)), (Segment("step"),))


def naive_of(graph: Graph, saved: int, offloaded: tuple[int, ...]) -> Schedule:
    """Sends each offloaded value when it is made, and fetches it when it is read."""
    steps: list[Step] = [Boundary(0)]
    for recipe in graph.recipes:
        reads = [v for v in recipe.read_values if v < saved]
        for v in (v for v in reads if v in offloaded):
            steps += [Fetch(v, HOST), Drop(v, HOST)]
        steps.append(Run(recipe.id, recipe.outputs))
        for v in (v for v in recipe.outputs if v in offloaded):
            steps += [Send(v, HOST), Drop(v)]
        steps += [Drop(v) for v in reads]
    return Schedule(tuple(steps))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("swiftness", [4.0, 0.5, 0.1])
def test_what_is_timed_is_legal_and_no_slower(name: str, swiftness: float) -> None:
    graph = GRAPHS[name]()
    compute_s = sum(graph.recipes[r].time_s for r in graph.program)
    machine = linked(sum(v.size_B for v in graph.values) / compute_s * swiftness, latency_s=1e-6)
    for seed, share in enumerate((1.0, 0.4)):
        naive = offloaded(graph, keep_all_schedule(graph), share, seed, apart=2 + seed)
        before = simulate(graph, with_waits(graph, naive.steps), machine)
        budget_B, host_B = before.peak_B, dict(before.memory_peaks_B).get(HOST, 0)
        for host_budget_B in (None, host_B):
            timed = timing(graph, naive, machine, budget_B, host_budget_B)
            check(graph, timed.schedule, budget_B, host_budget_B=host_budget_B)
            assert timed.time_s == simulate(graph, timed.schedule, machine).time_s <= before.time_s
            assert [s for s in timed.schedule.steps if isinstance(s, Boundary)] == [
                s for s in naive.steps if isinstance(s, Boundary)
            ]
            runs = [s.recipe for s in timed.schedule.steps if isinstance(s, Run)]
            assert runs == [s.recipe for s in naive.steps if isinstance(s, Run)]


def test_what_fits_is_not_offloaded() -> None:
    graph = NAMED["gpt"]()
    kept = keep_all_schedule(graph)
    timed = timing(graph, offloaded(graph, kept), linked(1e9), simulate(graph, kept).peak_B)
    assert timed.sent_B == timed.fetched_B == 0
    assert timed.time_s == simulate(graph, kept).time_s


def test_copies_that_fit_behind_compute_cost_nothing() -> None:
    """Each run takes as long as a copy, and before the first need there is time for all of them."""
    graph = there_and_back((1.0,) * 9, (B, B, B))
    timed = timing(graph, naive_of(graph, 3, (0, 1, 2)), linked(B), 4 * B)
    assert timed.sent_B > 0
    assert timed.time_s == pytest.approx(9.0)


def test_the_wait_is_what_the_link_cannot_do_meanwhile() -> None:
    """All has to be gone before the middle run, during which nothing can be fetched."""
    graph = there_and_back((1.0, 1.0, 1.0, 1.0, 1.0), (B, B))
    timed = timing(graph, naive_of(graph, 2, (0, 1)), linked(B / 4), 2 * B)
    # Sent from 1 s to 9 s; the middle run to 10 s; back from 10 s to 18 s, one run during the second copy, one behind.
    assert timed.time_s == pytest.approx(19.0)


def test_a_host_that_is_full_takes_the_next_copy_when_one_is_gone() -> None:
    graph = there_and_back((1.0,) * 9, (B, B, B))
    naive = naive_of(graph, 3, (0,))
    timed = timing(graph, naive, linked(B), 5 * B, B)
    check(graph, timed.schedule, 5 * B, host_budget_B=B)
    assert timed.time_s == pytest.approx(9.0)


@pytest.mark.parametrize("runs_s", [(1.0, 2.0, 1.0, 1.0, 3.0), (1.0, 1.0, 4.0, 2.0, 1.0), (2.0, 1.0, 1.0, 2.0, 2.0)])
@pytest.mark.parametrize("link_s", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("extra_B", [0, B])
def test_tiny_steps_are_as_fast_as_any_order_of_copies(runs_s: tuple[float, ...], link_s: float, extra_B: int) -> None:
    graph = there_and_back(runs_s, (B, 2 * B))
    machine, budget_B = linked(B / link_s), 3 * B + extra_B
    timed = timing(graph, naive_of(graph, 2, (0, 1)), machine, budget_B)
    assert timed.time_s == pytest.approx(_fastest_s(graph, machine, budget_B))


def _fastest_s(graph: Graph, machine: Machine, budget_B: int) -> float:
    """Every order of copies and drops around the runs, of each value or of none."""
    best_s = float("inf")
    places = range(1, len(graph.recipes) + 1)
    candidates = {v: [None, *_candidates(graph, v, places)] for v in (0, 1)}
    for first, second in itertools.product(candidates[0], candidates[1]):
        for order in ((0, 1), (1, 0)):
            schedule = _written(graph, {0: first, 1: second}, order)
            if schedule is None:
                continue
            timed = with_waits(graph, schedule.steps)
            try:
                check(graph, timed, budget_B)
            except IllegalPlan:
                continue
            best_s = min(best_s, simulate(graph, timed, machine).time_s)
    return best_s


Candidate = tuple[int, int, int]  # the runs before which a value is sent, dropped and fetched


def _candidates(graph: Graph, value: int, places: range) -> Iterator[Candidate]:
    made, read = value, len(graph.recipes) - 1 - value
    for sent, gone, back in itertools.combinations_with_replacement(places, 3):
        if made < sent and back <= read:
            yield sent, gone, back


def _written(graph: Graph, candidates: dict[int, Candidate | None], order: tuple[int, ...]) -> Schedule | None:
    steps: list[Step] = [Boundary(0)]
    for t, recipe in enumerate(graph.recipes):
        for kind in range(3):
            for v in order:
                candidate = candidates[v]
                if candidate is not None and candidate[kind] == t:
                    steps.append((Send(v, HOST), Drop(v), Fetch(v, HOST))[kind])
        steps.append(Run(t, recipe.outputs))
        steps += [Drop(v) for v in recipe.read_values if v < 2]
    return Schedule(tuple(steps))
