"""Plans that move values, run: the same bits, counted stalls, and nothing under way when something goes wrong."""

from __future__ import annotations

import _thread
import gc
import threading
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import lowtide
from lowtide.device.engines import Engines
from lowtide.frontends.plan_in_hand import Plan
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Send
from lowtide.planners.reductions.waits import with_waits
from tests.moving import away, moved, plan_of, saved_values
from tests.networks import NETWORKS, Network, differences, train, twin

_ROOM_B = 2**26


class Layers(nn.Module):
    """Like layers, which are written once, and a lock that lets a test into the middle of a forward."""

    def __init__(self, width: int = 96, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x.square().mean()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def fitted(model: nn.Module, *batch: torch.Tensor, budget: str = "120% of plain") -> nn.Module:
    """A model that has taken a step inside a budget that keeps everything."""
    found = lowtide.fit(model, budget=budget, work=200)
    found(*batch).backward()
    found.zero_grad()
    return found


def moving(model: nn.Module, link_Bps: float | None = None, host_B: int = _ROOM_B, ahead: int = 1) -> PlanRecord:
    """Lets a fitted model send everything that it saves to the host, and returns that plan."""
    record = plan_of(model)
    schedule = away(record.graph, record.schedule, saved_values(record.graph, record.schedule), ahead)
    found = moved(record, schedule, host_B, link_Bps)
    model.lowtide.use(Plan(found))  # type: ignore[union-attr]
    return found


def engines_of(model: nn.Module) -> Engines:
    """The copy engines of a fitted model."""
    found = model.lowtide.session.enclosure.engines  # type: ignore[union-attr]
    assert isinstance(found, Engines)
    return found


def same_gradients(one: nn.Module, other: nn.Module) -> None:
    """Asserts that both have gradients, with the same bits."""
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, q.grad)


def is_idle(engines: Engines) -> bool:
    """Whether nothing is under way, and nothing waits on the host."""
    gc.collect()
    return not engines._under_way and engines.pool.stats().in_use_B == 0


@pytest.mark.parametrize("name", ["mixed", "tied", "resnet"])
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
    after = moving(model, 2e9)
    assert differences(train(plain, network.loss, batches), train(model, network.loss, batches)) == []
    seen = engines_of(model).stats()
    sends = [s for s in after.schedule.steps if isinstance(s, Send)]
    assert seen.to_host.copies == seen.from_host.copies == 2 * len(sends) > 0
    assert seen.to_host.moved_B == 2 * sum(after.graph.values[s.value].size_B for s in sends)
    assert (seen.host_in_use_B, seen.host_peak_B > 0) == (0, True)
    assert after.peak_B < before.peak_B
    stats = lowtide.memory_stats(model)
    assert (stats.departures, stats.planned_misses, stats.host_budget_B) == (0, 0, _ROOM_B)


def test_a_plan_without_moves_starts_nothing() -> None:
    model = fitted(Layers(), torch.randn(8, 96))
    assert model.lowtide.session.enclosure.engines is None  # type: ignore[union-attr]
    assert "lowtide host" not in {thread.name for thread in threading.enumerate()}
    assert str(lowtide.transfers(model)).startswith("to the host: 0 copies")


def test_a_slow_link_stalls_and_is_counted() -> None:
    x = torch.randn(256, 96)
    plain = Layers()
    model = fitted(twin(plain), x)
    record = moving(model, 40e6)
    expected, loss = plain(x), model(x)
    expected.backward()
    loss.backward()
    assert torch.equal(expected, loss)
    same_gradients(plain, model)
    seen = engines_of(model).stats()
    moved_B = sum(record.graph.values[s.value].size_B for s in record.schedule.steps if isinstance(s, Fetch))
    assert seen.stalls > 0
    assert seen.stalled_s > 0.5 * moved_B / 40e6
    assert seen.by_value[0].time_s >= seen.by_value[-1].time_s
    assert seen.from_host.share is not None
    assert 0.5 < seen.from_host.share <= 1.01
    said = str(lowtide.transfers(model))
    assert seen.by_value[0].value in said
    assert "stalls: " in said


def test_strides_and_offsets_stay() -> None:
    class Strided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.sin(x.permute(0, 2, 3, 1)).contiguous(memory_format=torch.contiguous_format)
            h = torch.cos(torch.nn.functional.max_pool2d(torch.tanh(h.to(memory_format=torch.channels_last)), 2))
            return (h * h.transpose(0, 1).exp().transpose(0, 1)).sum()

    plain, x = Strided(), torch.randn(2, 8, 16, 16, requires_grad=True)
    model = fitted(twin(plain), x)
    x.grad = None
    moving(model)
    model(x).backward()
    found, x.grad = x.grad, None
    plain(x).backward()
    assert found is not None
    assert x.grad is not None
    assert torch.equal(found, x.grad)
    assert engines_of(model).stats().to_host.copies > 0


def test_a_backward_that_never_comes_gives_the_host_back() -> None:
    x = torch.randn(64, 96)
    model = fitted(Layers(), x)
    moving(model)
    loss = model(x)
    assert engines_of(model).pool.stats().in_use_B > 0
    del loss
    assert is_idle(engines_of(model))
    model(x).backward()
    assert is_idle(engines_of(model))


def test_a_backward_may_come_twice() -> None:
    x = torch.randn(64, 96)
    plain = Layers()
    model = fitted(twin(plain), x, budget="300% of plain")
    moving(model)
    for module in (plain, model):
        loss = module(x)
        loss.backward(retain_graph=True)
        loss.backward()
        del loss
    same_gradients(plain, model)
    assert is_idle(engines_of(model))


def test_a_model_may_go_between_forward_and_backward() -> None:
    x = torch.randn(64, 96, requires_grad=True)
    plain = Layers()
    model = fitted(twin(plain), x)
    x.grad = None
    moving(model)
    loss, engines = model(x), engines_of(model)
    lowtide.unfit(model)
    del model
    gc.collect()
    loss.backward()
    found, x.grad = x.grad, None
    plain(x).backward()
    assert found is not None
    assert x.grad is not None
    assert torch.equal(found, x.grad)
    del loss
    engines.drain()
    assert not engines._under_way


def test_saved_tensor_hooks_see_what_was_sent() -> None:
    x = torch.randn(64, 96)
    plain = Layers()
    model = fitted(twin(plain), x)
    moving(model, 1e9)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = model(x)
    loss.backward()
    plain(x).backward()
    same_gradients(plain, model)


def test_a_host_budget_that_is_too_small_is_said() -> None:
    x = torch.randn(64, 96)
    plain = Layers()
    model = fitted(twin(plain), x)
    record = moving(model)
    need_B = sum(record.graph.values[s.value].size_B for s in record.schedule.steps if isinstance(s, Send))
    with pytest.raises(lowtide.InfeasibleBudget, match=rf"Use host_budget={need_B}, or less"):
        model.lowtide.use(Plan(replace(record, host_budget_B=need_B - 1)))  # type: ignore[union-attr]
    model.lowtide.use(Plan(replace(record, host_budget_B=need_B + 4096)))  # type: ignore[union-attr]
    first = model(x)
    with pytest.raises(torch.OutOfMemoryError, match=r"(?s)was to wait on the host.*raise host_budget") as raised:
        model(x)
    assert "lowtide: " in str(raised.value)
    del raised
    first.backward()
    plain(x).backward()
    same_gradients(plain, model)
    assert is_idle(engines_of(model))


def test_host_memory_that_the_system_refuses() -> None:
    x = torch.randn(64, 96)
    model = fitted(Layers(), x)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    moving(model, host_B=2**60)
    with pytest.raises(lowtide.LowtideError, match="the system refuses"):
        model(x)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("segment", ["forward", "backward"])
def test_an_exception_in_mid_transfer_lets_copies_end(
    error: type[BaseException], segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(256, 96)
    plain = Layers()
    model = fitted(twin(plain), x)
    moving(model, 200e6)
    loss = model(x) if segment == "backward" else None
    engines, calls = engines_of(model), 0
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
        model(x) if loss is None else loss.backward()
    monkeypatch.undo()
    assert all(lane._copier.idle for lane in engines.lanes)  # type: ignore[attr-defined]
    del loss
    model.zero_grad()
    model(x).backward()
    plain(x).backward()
    same_gradients(plain, model)
    assert is_idle(engines)


def test_an_interrupt_ends_a_wait() -> None:
    x = torch.randn(256, 96)
    model = fitted(Layers(), x)
    moving(model, 4e6)
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    timer.join()
    assert all(lane._copier.idle for lane in engines_of(model).lanes)  # type: ignore[attr-defined]


def test_a_value_may_stay_on_both_sides() -> None:
    x = torch.randn(64, 96)
    plain = Layers()
    model = fitted(twin(plain), x)
    record = plan_of(model)
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
            # Given up, fetched once more, and given up again: the host copy has come along beside the device's.
            found += [step, Fetch(step.value, HOST), step, Drop(step.value, HOST)]
        else:
            found.append(step)
    model.lowtide.use(Plan(moved(record, with_waits(record.graph, found), _ROOM_B)))  # type: ignore[union-attr]
    model(x).backward()
    plain(x).backward()
    same_gradients(plain, model)
    assert engines_of(model).stats().from_host.copies == 3
    assert is_idle(engines_of(model))
