"""Training with a host budget: planned, run, saved, cached and asked for everywhere a budget is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import lowtide
from lowtide import pipeline
from lowtide.errors import BudgetError, LinkError
from lowtide.ir.machine import Link
from lowtide.ir.schedule import Fetch
from lowtide.profile import bandwidth as bandwidth_module
from lowtide.profile.bandwidth import Bandwidth, bandwidth
from lowtide.profile.cache import ProfileCache
from lowtide.session.compile_sessions import compiled_sessions
from lowtide.session.options import links_named, offload_options
from lowtide.units import Budget, format_Bps, parse_rate

LINK = "2 GB/s"


class Deep(nn.Module):
    """Layers with more to keep than half of plain holds, and dearer to recompute than to offload."""

    def __init__(self, width: int = 128, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def batch() -> torch.Tensor:
    """What the layers are called with."""
    return torch.randn(1024, 128)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _known_bandwidth() -> Iterator[None]:
    """Copies count as they are on an idle machine, however busy this one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "bandwidth", lambda *_: Bandwidth(9e9, 9e9, 8e9, 8e9, 5e-6))
        yield


@pytest.fixture(scope="module")
def saved(_known_bandwidth: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that offloads, on disk."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("moving") / "plan.json"
    found = lowtide.plan(Deep(), (batch(),), budget="45% of plain", host_budget="64MiB", link=LINK, work=2_000)
    assert any(isinstance(s, Fetch) for s in found.record.schedule.steps)
    found.save(path)
    found.save_graph(path.with_name("graph.json"))
    return path


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What one step gives, loss first."""
    model.zero_grad()
    loss = model(x)
    loss.backward()
    return [loss.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_a_fitted_model_moves_what_pays_and_keeps_its_bits() -> None:
    plain, x = Deep(), batch()
    model = lowtide.fit(Deep(), budget="45% of plain", host_budget="64MiB", link=LINK, work=2_000)
    model.load_state_dict(plain.state_dict())
    for _ in range(2):
        assert all(map(torch.equal, gradients(plain, x), gradients(model, x)))
    plan = model.lowtide.plan  # type: ignore[union-attr]
    record = plan.record
    assert (record.host_budget_B, record.link_Bps) == (2**26, 2e9)
    assert record.links[0].rate_Bps <= 2e9
    found = lowtide.transfers(model)
    sent = found.predicted.sent
    assert found.observed.to_host.copies == 2 * sent > 0
    assert found.observed.to_host.moved_B == 2 * found.predicted.sent_B
    stats = lowtide.memory_stats(model)
    assert (stats.misplaced_allocations, stats.host_in_use_B) == (0, 0)
    assert 0 < stats.host_peak_B <= stats.host_budget_B == 2**26
    said = plan.explain(100, verbose=True)
    assert "offloaded once" in said
    assert "copies to the host" in said


def test_a_saved_plan_moves_as_it_says(saved: Path) -> None:
    record = lowtide.Plan.load(saved).record
    assert (record.host_budget_B, record.link_Bps, record.links[1].source) == (2**26, 2e9, "host")
    plain, x = Deep(), batch()
    model = lowtide.fit(Deep(), plan=saved)
    model.load_state_dict(plain.state_dict())
    assert all(map(torch.equal, gradients(plain, x), gradients(model, x)))
    assert lowtide.memory_stats(model).host_budget_B == 2**26
    assert lowtide.transfers(model).observed.to_host.copies > 0


def test_a_cached_plan_is_for_its_host_budget_and_link(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWTIDE_PLAN_CACHE", "64MiB")
    x = batch()

    def plan(host_budget: str | None, link: str | None) -> lowtide.Plan:
        torch._dynamo.reset()
        caplog.clear()
        with caplog.at_level("INFO", logger="lowtide"):
            return lowtide.plan(Deep(), (x,), budget="55% of plain", host_budget=host_budget, link=link, work=500)

    first = plan("64MiB", LINK)
    assert "from the cache" not in caplog.text
    assert plan("64MiB", LINK).record.schedule == first.record.schedule
    assert "from the cache" in caplog.text
    assert plan("63MiB", LINK).record.host_budget_B == 63 * 2**20
    assert "from the cache" not in caplog.text
    assert plan(None, None).record.links == ()


def test_the_backend_moves_too() -> None:
    plain, x = Deep(), batch()
    model = Deep()
    model.load_state_dict(plain.state_dict())
    options = {"budget": "45% of plain", "host_budget": "64MiB", "link": LINK, "work": 2_000}
    compiled = torch.compile(model, backend="lowtide", options=options)
    expected = gradients(plain, x)
    loss = compiled(x)
    loss.backward()
    assert torch.equal(loss, expected[0])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected[1:], strict=True))  # type: ignore[arg-type]
    session = next(s for s in compiled_sessions() if s.options.host_budget_B == 64 * 2**20)
    assert session.budget_scope.engines is not None
    assert session.budget_scope.engines.stats().to_host.copies > 0


def test_a_file_moves_over_a_link_that_is_named(saved: Path) -> None:
    graph = saved.with_name("graph.json")
    with pytest.raises(LinkError, match="says nothing about a link"):
        lowtide.plan_file(graph, budget="45% of plain", host_budget="64MiB", work=200)
    named = lowtide.plan_file(
        graph, budget="45% of plain", host_budget="64MiB", machine="h100", link="20GB/s", work=200
    )
    assert [link.rate_Bps for link in named.record.links] == [20e9, 20e9]
    fast = lowtide.plan_file(graph, budget="45% of plain", host_budget="64MiB", machine="gh200", work=200)
    assert fast.record.links[0].rate_Bps == 450e9
    assert fast.time_s <= named.time_s * 1.01
    found = lowtide.frontier_file(graph, points=2, host_budget="64MiB", link=LINK, baselines=False, work=200)
    assert found.points


@pytest.mark.parametrize(
    ("text", "rate_Bps"),
    [("12 GB/s", 12e9), ("12e9", 12e9), (12e9, 12e9), ("1.5GiB/s", 1.5 * 2**30), ("800 MB/s", 8e8), (5, 5.0)],
)
def test_rates(text: str | float, rate_Bps: float) -> None:
    assert parse_rate(text) == rate_Bps


@pytest.mark.parametrize("text", ["fast", "12 GB", "12 parsecs/s", "-3", 0, float("inf"), True, None])
def test_rates_that_cannot_be_read(text: object) -> None:
    with pytest.raises(LinkError, match=r"12 GB/s"):
        parse_rate(text)  # type: ignore[arg-type]


def test_rates_for_people() -> None:
    assert [format_Bps(r) for r in (12e9, 1.234e9, 45.6e6, 999.0)] == ["12.0 GB/s", "1.23 GB/s", "45.6 MB/s", "999 B/s"]


def test_what_may_be_moved() -> None:
    assert offload_options(None) == offload_options(0) == {"host_budget_B": 0, "link_Bps": None}
    assert offload_options("1GiB", "3GB/s") == {"host_budget_B": 2**30, "link_Bps": 3e9}
    assert offload_options(Budget(size_B=5)) == {"host_budget_B": 5, "link_Bps": None}
    with pytest.raises(BudgetError, match="host_budget: cannot read"):
        offload_options("much")
    with pytest.raises(BudgetError, match="host budget cannot be 50% of the device"):
        offload_options("50%")
    with pytest.raises(BudgetError, match="say with host_budget="):
        offload_options(None, "3GB/s")
    assert links_named(None, None, None) == ()
    with pytest.raises(LinkError, match="no link between device and host"):
        links_named("1GiB", None, "cpu")


def test_bandwidth_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def measure(device: str) -> Bandwidth:
        nonlocal count
        count += 1
        assert device == "cpu"
        return Bandwidth(1.234e9, 2e9, 9e8, 1e9, 1.5e-5)

    monkeypatch.setattr(bandwidth_module, "_measure", measure)
    first = bandwidth("cpu", ProfileCache(tmp_path))
    assert first == bandwidth("cpu", ProfileCache(tmp_path)) == Bandwidth(1.2e9, 2e9, 9e8, 1e9, 1.5e-5)
    assert count == 1
    assert first.links(9.5e8) == (
        Link("device", "host", "to_host", 9e8, 1.5e-5),
        Link("host", "device", "from_host", 9.5e8, 1.5e-5),
    )


def test_the_smallest_budget_is_named_for_each_host_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))

    def step(budget: int, host_budget: str | None) -> None:
        torch._dynamo.reset()
        model = Deep(depth=3)
        lowtide.fit(model, budget=budget, host_budget=host_budget, link=None if host_budget is None else LINK, work=500)
        model(batch()).backward()

    def smallest(host_budget: str | None) -> int:
        with pytest.raises(lowtide.InfeasibleBudget) as caught:
            step(1, host_budget)
        assert caught.value.smallest_B is not None
        return caught.value.smallest_B

    low_B = smallest("64MiB")
    alone_B = smallest(None)
    assert low_B <= alone_B
    step(alone_B, None)  # and not the plan that offloads values


def test_a_host_that_is_too_small_to_help_hides_no_smallest_budget() -> None:
    x, named = batch(), []
    for moves in ({}, {"host_budget": "4KiB", "link": LINK}):
        torch._dynamo.reset()
        model = lowtide.fit(Deep(), 1, work=500, **moves)  # type: ignore[arg-type]
        with pytest.raises(lowtide.InfeasibleBudget) as caught:
            model(x)
        named.append(caught.value.smallest_B)
    assert named[0] is not None
    assert named[0] == named[1]
