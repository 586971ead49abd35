"""Plans that offload values, run: the same bits, counted stalls, and nothing under way when something goes wrong."""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import lowtide
from lowtide.device.engines import Engines
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Send
from lowtide.planners.offload.waits import with_waits
from lowtide.results.plan import Plan
from tests.moving import away, moved, plan_of, saved_values
from tests.networks import NETWORKS, Network, differences, train, twin

_FREE_B = 2**26


class Layers(nn.Module):
    """Like layers, which are written once, and a lock that lets a test into the middle of a forward."""

    def __init__(self, width: int = 96, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x.square().mean()


@dataclass
class Twins:
    """A plain model and a fitted one with the same content, and what they are called with."""

    plain: nn.Module
    model: nn.Module
    x: torch.Tensor
    kept: PlanRecord

    def moving(self, link_Bps: float | None = None, host_B: int = _FREE_B) -> PlanRecord:
        """Lets the fitted one offload everything that it saves."""
        self.model(self.x)  # after an exception it is captured anew
        return moving(self.model, self.kept, link_Bps, host_B)

    def backward(self, fitted_loss: torch.Tensor | None = None) -> None:
        """Takes a step of both, or ends one, and compares all gradients."""
        (self.model(self.x) if fitted_loss is None else fitted_loss).backward()
        self.plain(self.x).backward()
        self.compare()

    def compare(self) -> None:
        """Asserts that both have gradients, with the same bits, and forgets them."""
        for p, q in zip((*self.plain.parameters(),), (*self.model.parameters(),), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            assert torch.equal(p.grad, q.grad)
        self.plain.zero_grad()
        self.model.zero_grad()


def twins() -> Twins:
    """A model that has taken a step inside a budget that keeps everything, and bytes for a second forward."""
    torch.manual_seed(0)
    plain, x = Layers(), torch.randn(256, 96)
    model = lowtide.fit(twin(plain), budget="300% of plain", work=200)
    model(x).backward()
    model.zero_grad()
    return Twins(plain, model, x, plan_of(model))


@pytest.fixture(scope="module")
def shared() -> Twins:
    """One pair for the tests that leave it as it was."""
    torch._dynamo.reset()
    return twins()


@pytest.fixture
def pair(shared: Twins) -> Iterator[Twins]:
    """The shared pair, which offloads nothing before and after."""
    yield shared
    use(shared.model, shared.kept)
    shared.plain.zero_grad()
    shared.model.zero_grad()


def use(model: nn.Module, record: PlanRecord) -> None:
    """Makes a plan the active one, with engines of its own."""
    model.lowtide.session.budget_scope.engines = None  # type: ignore[union-attr]
    model.lowtide.use(Plan(record))  # type: ignore[union-attr]


def moving(model: nn.Module, kept: PlanRecord, link_Bps: float | None = None, host_B: int = _FREE_B) -> PlanRecord:
    """Lets a fitted model offload everything that it saves, and returns that plan.

    Arguments:
        kept: its plan that offloads nothing.
    """
    schedule = away(kept.graph, kept.schedule, saved_values(kept.graph, kept.schedule))
    found = moved(kept, schedule, host_B, link_Bps)
    use(model, found)
    return found


def engines_of(model: nn.Module) -> Engines:
    """The copy engines of a fitted model."""
    found = model.lowtide.session.budget_scope.engines  # type: ignore[union-attr]
    assert isinstance(found, Engines)
    return found


def is_idle(engines: Engines) -> bool:
    """Whether nothing is under way, and nothing waits on the host."""
    gc.collect()
    return not engines._in_progress and engines.pool.stats().in_use_B == 0


def test_a_plan_without_moves_starts_nothing(pair: Twins) -> None:
    assert pair.model.lowtide.session.budget_scope.engines is None  # type: ignore[union-attr]
    assert str(lowtide.transfers(pair.model)).startswith("to the host: 0 copies")


@pytest.mark.parametrize("name", ["mixed", pytest.param("tied", marks=pytest.mark.breadth)])
def test_bits_are_those_of_plain(name: str) -> None:
    network: Network = NETWORKS[name]
    plain = network.build()
    model = twin(plain)
    lowtide.fit(model, budget="120% of plain", work=200)
    batches = network.batches(2)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    train(model, network.loss, batches[:1])
    model.load_state_dict(state)
    before = plan_of(model)
    after = moving(model, before, 2e9)
    assert differences(train(plain, network.loss, batches), train(model, network.loss, batches)) == []
    seen = engines_of(model).stats()
    sends = [s for s in after.schedule.steps if isinstance(s, Send)]
    assert seen.to_host.copies == seen.from_host.copies == 2 * len(sends) > 0
    assert seen.to_host.moved_B == 2 * sum(after.graph.values[s.value].size_B for s in sends)
    assert (seen.host_in_use_B, seen.host_peak_B > 0) == (0, True)
    assert after.peak_B < before.peak_B
    stats = lowtide.memory_stats(model)
    assert (stats.misplaced_allocations, stats.planned_misses, stats.host_budget_B) == (0, 0, _FREE_B)


def test_a_slow_link_stalls_and_is_counted(pair: Twins) -> None:
    record = pair.moving(40e6)
    pair.backward()
    seen = engines_of(pair.model).stats()
    moved_B = sum(record.graph.values[s.value].size_B for s in record.schedule.steps if isinstance(s, Fetch))
    assert seen.stalls > 0
    assert seen.stalled_s > 0.5 * moved_B / 40e6
    assert seen.by_value[0].time_s >= seen.by_value[-1].time_s
    assert seen.from_host.share is not None
    assert 0.5 < seen.from_host.share <= 1.01
    said = str(lowtide.transfers(pair.model))
    assert seen.by_value[0].value in said
    assert "stalls: " in said


def test_strides_are_kept() -> None:
    class Strided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.cos(torch.tanh(x.to(memory_format=torch.channels_last)).permute(0, 2, 1, 3))
            return (h * h.transpose(0, 1).exp().transpose(0, 1)).sum()

    plain, x = Strided(), torch.randn(2, 8, 16, 16, requires_grad=True)
    model = lowtide.fit(Strided(), budget="120% of plain", work=200)
    model(x).backward()
    x.grad = None
    record = moving(model, plan_of(model))
    strides = {record.graph.values[s.value].geometry.stride for s in record.schedule.steps if isinstance(s, Send)}  # type: ignore[union-attr]
    assert any(list(stride) != sorted(stride, reverse=True) for stride in strides)
    model(x).backward()
    found, x.grad = x.grad, None
    plain(x).backward()
    assert found is not None
    assert x.grad is not None
    assert torch.equal(found, x.grad)
    assert engines_of(model).stats().to_host.copies > 0


def test_a_backward_that_never_comes_gives_the_host_back(pair: Twins) -> None:
    pair.moving()
    loss = pair.model(pair.x)
    assert engines_of(pair.model).pool.stats().in_use_B > 0
    del loss
    assert is_idle(engines_of(pair.model))
    pair.backward()
    assert is_idle(engines_of(pair.model))


def test_a_backward_may_come_twice(pair: Twins) -> None:
    pair.moving()
    for module in (pair.plain, pair.model):
        loss = module(pair.x)
        loss.backward(retain_graph=True)
        loss.backward()
        del loss
    pair.compare()
    assert is_idle(engines_of(pair.model))


def test_a_model_may_go_between_forward_and_backward() -> None:
    pair = twins()
    pair.moving()
    x = pair.x.requires_grad_()
    pair.model(x).backward()
    x.grad = None
    loss, engines = pair.model(x), pair.model.lowtide.session.budget_scope.engines  # type: ignore[union-attr]
    lowtide.unfit(pair.model)
    pair.model = nn.Identity()
    gc.collect()
    loss.backward()
    found, x.grad = x.grad, None
    pair.plain(x).backward()
    assert found is not None
    assert x.grad is not None
    assert torch.equal(found, x.grad)
    del loss
    if engines is not None:
        assert not engines._in_progress


def test_saved_tensor_hooks_see_what_was_sent(pair: Twins) -> None:
    pair.moving(1e9)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = pair.model(pair.x)
    pair.backward(loss)


def test_a_host_budget_that_is_too_small_is_said(pair: Twins) -> None:
    record = pair.moving()
    need_B = sum(record.graph.values[s.value].size_B for s in record.schedule.steps if isinstance(s, Send))
    with pytest.raises(lowtide.InfeasibleBudget, match=rf"Use host_budget={need_B}, or less"):
        pair.model.lowtide.use(Plan(replace(record, host_budget_B=need_B - 1)))  # type: ignore[union-attr]
    pair.model.lowtide.use(Plan(replace(record, host_budget_B=need_B + 4096)))  # type: ignore[union-attr]
    first = pair.model(pair.x)
    with pytest.raises(torch.OutOfMemoryError, match=r"(?s)lowtide: .* was to wait on the host.*raise host_budget"):
        pair.model(pair.x)
    pair.backward(first)
    del first
    assert is_idle(engines_of(pair.model))


def test_host_memory_that_the_system_refuses(pair: Twins) -> None:
    before = {k: v.clone() for k, v in pair.model.state_dict().items()}
    pair.moving(host_B=2**60)
    with pytest.raises(lowtide.LowtideError, match="the system refuses"):
        pair.model(pair.x)
    assert all(torch.equal(v, before[k]) for k, v in pair.model.state_dict().items())


@pytest.mark.parametrize(("segment", "error"), [("forward", KeyboardInterrupt), ("backward", RuntimeError)])
def test_an_exception_in_mid_transfer_lets_copies_end(
    pair: Twins, error: type[BaseException], segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.moving(200e6)
    loss = pair.model(pair.x) if segment == "backward" else None
    engines, calls = engines_of(pair.model), 0
    begin = engines.begin

    def breaking(transfer: Any) -> None:
        nonlocal calls
        begin(transfer)
        calls += 1
        if calls == 3:
            assert not transfer.happening.is_set
            raise error("in mid-transfer")

    monkeypatch.setattr(engines, "begin", breaking)
    with pytest.raises(error, match="in mid-transfer"):
        pair.model(pair.x) if loss is None else loss.backward()
    monkeypatch.undo()
    assert all(lane._copier.idle for lane in engines.lanes)  # type: ignore[attr-defined]
    del loss
    pair.model.zero_grad()
    pair.backward()
    assert is_idle(engines)


def test_an_interrupt_ends_a_wait(pair: Twins) -> None:
    pair.moving(4e6)
    timer = threading.Timer(0.05, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pair.model(pair.x)
    timer.join()
    assert all(lane._copier.idle for lane in engines_of(pair.model).lanes)  # type: ignore[attr-defined]
    assert is_idle(engines_of(pair.model))


def test_a_value_may_be_kept_on_both_sides(pair: Twins) -> None:
    record = pair.kept
    chosen = saved_values(record.graph, record.schedule)
    steps = list(record.schedule.steps)
    border = next(i for i, s in enumerate(steps) if isinstance(s, Boundary) and s.segment)
    drops = {s.value: i for i, s in enumerate(steps) if isinstance(s, Drop) and i > border}
    chosen = [v for v in chosen if v in drops][:3]
    found: list[Any] = []
    for index, step in enumerate(steps):
        if index == border:
            found += [Send(v, HOST) for v in chosen]
        if isinstance(step, Drop) and step.value in chosen:
            # Dropped, prefetched once more, and dropped again: the host copy has come along with the device's.
            found += [step, Fetch(step.value, HOST), step, Drop(step.value, HOST)]
        else:
            found.append(step)
    use(pair.model, moved(record, with_waits(record.graph, found), _FREE_B))
    pair.backward()
    assert engines_of(pair.model).stats().from_host.copies >= 3
    assert is_idle(engines_of(pair.model))
