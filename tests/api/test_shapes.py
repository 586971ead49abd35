"""A plan per shape: many lengths in one run, a shape never seen, and one budget for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

import lowtide
from lowtide.ir.check import check
from lowtide.ir.likeness import structure
from lowtide.ir.plan import Covers, PlanRecord, Status
from lowtide.ir.schedule import Drop
from lowtide.pipeline import request_here
from lowtide.plan_cache import store
from lowtide.plan_cache.lookup import PlanLookup
from lowtide.plan_cache.store import PlanCache
from lowtide.profile.cache import ProfileCache
from lowtide.profile.measurement import Measurement
from lowtide.record import Constraints, PlanOptions, PlanRequest, Start, make_record
from lowtide.report.explain import explain, render
from lowtide.session.handle import Fitted
from lowtide.units import Budget
from tests.cli.test_cli_cache import HERE
from tests.networks import NETWORKS, Network, twin
from tests.planners.tape import gpt
from tests.planners.test_begun import scaled

TIED = NETWORKS["tied"]
LENGTHS = (12, 20, 9, 15, 24, 7, 18, 30, 11, 22, 28, 5)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No plan of another test is found; profiles are shared."""
    torch._dynamo.reset()
    monkeypatch.delenv("LOWTIDE_PLAN_CACHE", raising=False)
    place = tmp_path_factory.mktemp("plans")
    monkeypatch.setattr(store, "cache_folder", lambda _: place)


def tokens(length: int, count: int = 3) -> torch.Tensor:
    return torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(length))


def step(module: Any, network: Network, batch: Any, seed: int) -> list[torch.Tensor | None]:
    """The gradients of one step."""
    torch.manual_seed(seed)
    module.zero_grad()
    network.loss(module, batch).backward()
    return [p.grad for p in module.parameters()]


def assert_equal_steps(plain: Any, fitted: Any, batch: Any, seed: int) -> None:
    pairs = zip(step(plain, TIED, batch, seed), step(fitted, TIED, batch, seed), strict=True)
    assert all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def records(fitted: Any) -> list[PlanRecord]:
    handle: Fitted = fitted.lowtide
    return [p.record for p in handle.plans]


@pytest.mark.parametrize(
    ("dynamic", "lengths"), [(None, LENGTHS), pytest.param(True, LENGTHS[:4], marks=pytest.mark.breadth)]
)
def test_many_lengths_in_one_run(dynamic: bool | None, lengths: tuple[int, ...]) -> None:
    plain = TIED.build()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=3_000, dynamic=dynamic)
    for length in (*lengths, lengths[1]):
        assert_equal_steps(plain, fitted, tokens(length), length)
    made = records(fitted)
    assert len(made) == len(lengths)
    programs = {structure(r.graph) for r in made}  # of the smallest sizes, less can run in place or in parts
    assert len(programs) <= 4
    assert sum(bool(r.begun_from) for r in made) >= len(lengths) - len(programs)
    assert lowtide.memory_stats(fitted).misplaced_allocations == 0


def test_fixed_sizes_are_captured_and_planned_one_by_one() -> None:
    plain = TIED.build()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=3_000, dynamic=False)
    for length in LENGTHS[:3]:
        assert_equal_steps(plain, fitted, tokens(length), length)
    made = records(fitted)
    assert len(made) == 3
    assert all(r.begun_from for r in made[1:])  # the same program for fixed sizes, captured anew


def test_batches_and_lengths_may_both_vary() -> None:
    plain = TIED.build()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=3_000)
    for number, (count, length) in enumerate([(3, 12), (5, 20), (2, 9)]):
        assert_equal_steps(plain, fitted, tokens(length, count), number)


def test_without_a_limit_every_shape_is_searched_in_full() -> None:
    fitted = lowtide.fit(TIED.build(), budget="100% of plain", work=2_000, shape_limit_s=None)
    for length in LENGTHS[:3]:
        step(fitted, TIED, tokens(length), length)
    assert not any(r.begun_from for r in records(fitted))


def test_a_long_sequence_after_a_short_one_has_one_budget() -> None:
    plain = TIED.build()
    optimizers = []
    budget_B = lowtide.plan(plain, (tokens(30),), budget="90% of plain", work=5_000).budget_B
    fitted: Any = lowtide.fit(twin(plain), budget=budget_B + 2**16, work=5_000)
    for module in (plain, fitted):
        optimizers.append(torch.optim.SGD(module.parameters(), lr=0.1))
    for length in (7, 30, 7, 24):
        assert_equal_steps(plain, fitted, tokens(length), length)
        for optimizer in optimizers:
            optimizer.step()
        stats = lowtide.memory_stats(fitted)
        assert stats.reserved_B <= stats.budget_B == budget_B + 2**16
    for r in records(fitted):
        check(r.graph, r.schedule, r.budget_B - r.outside_B, r.layout)
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), fitted.parameters(), strict=True))
    assert lowtide.memory_stats(fitted).misplaced_allocations == 0


def test_a_shape_that_fits_no_budget_is_refused_and_the_others_train_on() -> None:
    fitted = lowtide.fit(TIED.build(), budget="100% of plain", work=2_000)
    step(fitted, TIED, tokens(8), 0)
    budget_B = records(fitted)[0].budget_B
    fitted.lowtide.set_budget(budget_B)
    step(fitted, TIED, tokens(8), 0)
    with pytest.raises(lowtide.InfeasibleBudget):
        TIED.loss(fitted, tokens(600))
    step(fitted, TIED, tokens(7), 0)


@pytest.mark.breadth
def test_explain_says_from_which_shape_a_plan_came() -> None:
    fitted = lowtide.fit(TIED.build(), budget="100% of plain", work=2_000, dynamic=True)
    for length in (12, 20):
        step(fitted, TIED, tokens(length), length)
    first, second = records(fitted)
    assert "began from" not in render(explain(first), verbose=True)
    text = render(explain(second), verbose=True)
    assert "began from" in text
    assert "int64[3, 12]" in text


@pytest.mark.breadth
def test_profiles_of_a_further_shape_are_exact_in_bytes() -> None:
    fitted = lowtide.fit(TIED.build(), budget="100% of plain", work=2_000, dynamic=True)
    for length in (13, 21):
        step(fitted, TIED, tokens(length), length)
    quick = records(fitted)[1]
    torch._dynamo.reset()
    slow = lowtide.plan(TIED.build(), (tokens(21),), budget="100% of plain", work=2_000, dynamic=True).record
    assert structure(quick.graph) == structure(slow.graph)
    assert [r.trace for r in quick.graph.recipes] == [r.trace for r in slow.graph.recipes]
    assert [v.geometry for v in quick.graph.values] == [v.geometry for v in slow.graph.values]
    assert all(r.time_s > 0 for r in quick.graph.recipes)


# without a model ----------------------------------------------------------------------------------------------


def _request(graph: Any, share: float, limit_s: float | None = 2.0) -> PlanRequest:
    options = PlanOptions(budget=Budget(of_plain=share), work=4_000, shape_limit_s=limit_s)
    return request_here(graph, options, constraints=Constraints(), device="cpu", covers=Covers())


def test_the_nearest_shape_serves_from_this_session_and_from_the_disk(tmp_path: Any) -> None:
    small, middle, large = (scaled(gpt(2), f) for f in (2, 5, 6))
    first = PlanLookup(PlanCache(tmp_path))
    assert not first.plan(_request(small, 0.7), None).begun_from
    first.plan(_request(large, 0.7), None)
    again = PlanLookup(PlanCache(tmp_path))
    record = again.plan(_request(middle, 0.7), None)
    check(middle, record.schedule, record.budget_B)
    assert record.outcome.stats.get("start_s") is not None
    (kept,) = [e for e in PlanCache(tmp_path).store.entries() if e.about.budget_B == record.budget_B]
    assert kept.about.structure == structure(middle)
    assert PlanLookup(PlanCache(tmp_path)).plan(_request(middle, 0.7), None) == record
    alone = PlanLookup(PlanCache(tmp_path)).plan(_request(middle, 0.7, None), None)
    assert alone.outcome.stats.get("start_s") is None  # asked to search in full, it takes no plan that was not


def test_no_time_at_all_still_gives_a_plan_that_the_checker_passes() -> None:
    small, large = gpt(2), scaled(gpt(2), 3)
    request = replace(_request(small, 0.7), constraints=Constraints(enforced=True))
    known = make_record(request)
    start = Start(schedule=known.schedule, shapes="small", limit_s=0.0)
    record = make_record(replace(request, graph=large), start=start)
    assert record.layout is not None
    check(large, record.schedule, record.budget_B, record.layout)
    assert (record.begun_from, record.outcome.stats["winner"]) == ("small", "start")
    assert record.outcome.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert record.outcome.floor_B > 0


def test_a_start_that_leads_nowhere_does_not_hide_a_plan() -> None:
    graph = gpt(2)
    whole = make_record(_request(graph, 0.7))
    useless = msgspec.structs.replace(
        whole.schedule, steps=tuple(s for s in whole.schedule.steps if not isinstance(s, Drop))
    )
    start = Start(schedule=useless, shapes="other", limit_s=0.0)
    record = make_record(_request(graph, 0.7), start=start)
    check(graph, record.schedule, record.budget_B)


def test_plans_of_another_program_or_another_budget_are_no_neighbours(tmp_path: Any) -> None:
    known = PlanLookup(PlanCache(tmp_path))
    known.plan(_request(gpt(2), 0.7), None)
    assert not known.plan(_request(gpt(3), 0.7), None).begun_from
    other = PlanLookup(PlanCache(tmp_path)).plan(_request(scaled(gpt(2), 2), 0.8), None)
    assert other.outcome.stats.get("start_s") is None


def test_nothing_is_measured_in_passing_where_it_was_measured_well(tmp_path: Any) -> None:
    real, rough = Measurement(0.5, (8, -1), ()), Measurement(0.4, (8, -1), (), scaled=True)
    for first, second in ((real, rough), (rough, real)):
        cache = ProfileCache(tmp_path)
        cache.put(HERE, "a", first)
        cache.flush()
        other = ProfileCache(tmp_path)
        other.put(HERE, "a", second)
        other.flush()
        assert ProfileCache(tmp_path).get(HERE, "a") == real
        cache.clear()
