"""The hard budget: what a whole training loop does inside the arena, and what happens when it does not fit."""

from __future__ import annotations

import functools
import gc
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device import shim
from lowtide.ir.layout import SMALL_B, rounded_B
from tests.networks import NETWORKS, Network, twin

pytestmark = pytest.mark.skipif(not shim.available(), reason="no compiler")


class Answer(NamedTuple):
    """The loss, and what it is of."""

    loss: torch.Tensor
    logits: torch.Tensor


class Answering(nn.Module):
    """A classifier that returns both."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.Tanh())]
        self.body = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Dropout(0.1), *layers)
        self.last = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Answer:
        logits = self.last(self.body(x))
        return Answer(F.cross_entropy(logits, y), logits)


ANSWERING = Network("answering", Answering, lambda m, b: m(*b), NETWORKS["mixed"].batches)


class Stumble(Exception):
    """What goes wrong in the middle of a step."""


def _fitted(network: Network, alpha: float, **options: Any) -> tuple[nn.Module, nn.Module, list[torch.optim.Optimizer]]:
    """The network plainly and in a budget between the floor and keep-all, each with its AdamW."""
    torch._dynamo.reset()
    plain = network.build()
    fitted = twin(plain)
    optimizers = [torch.optim.AdamW([p for p in m.parameters() if p.requires_grad]) for m in (plain, fitted)]
    floor_B, reserved_B = _ends(network)
    budget_B = int(floor_B + alpha * (reserved_B - floor_B)) + 64  # a whole unit above the floor
    lowtide.fit(fitted, budget_B, optimizer=optimizers[1], work=5_000, **options)
    return plain, fitted, optimizers


@functools.cache
def _ends(network: Network) -> tuple[int, int]:
    """The floor of a network with AdamW, and what keep-all reserves."""
    probe = network.build()
    sizing = torch.optim.AdamW([p for p in probe.parameters() if p.requires_grad])
    args, kwargs = _call(network, network.batches(1)[0])
    full = lowtide.plan(probe, args, kwargs, budget=2**40, optimizer=sizing, work=1_000)
    return full.floor_B, full.reserved_B


def _call(network: Network, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How the network calls its module with a batch."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def module(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((args, kwargs))
        return torch.zeros(())

    network.outputs(module, batch)  # type: ignore[arg-type]
    return seen[0]


def _state(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    instants = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return [*module.parameters(), *module.buffers(), *instants]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _loop(network: Network, module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Iterator[torch.Tensor]:
    """A training loop with everything that happens to training loops."""
    torch.manual_seed(5)
    saved = io.BytesIO()
    batches = network.batches(3)
    for step in range(steps):
        batch = batches[step % 3]
        optimizer.zero_grad()
        handle = None
        if step == 4:
            handle = next(p for p in module.parameters() if p.requires_grad).register_hook(_stumble)
        try:
            loss = network.loss(module, batch)
            loss.backward()
            optimizer.step()
            yield loss.detach().clone()
        except Stumble:
            assert step == 4
        finally:
            if handle is not None:
                handle.remove()
        if step == 6:
            module.eval()
            with torch.no_grad():
                yield network.loss(module, batch).clone()
            module.train()
            torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        if step == 8:
            saved.seek(0)
            found = torch.load(saved)
            module.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])


def _stumble(_: torch.Tensor) -> None:
    raise Stumble


@pytest.mark.parametrize(
    "name", ["mixed", "tied", *(pytest.param(n, marks=pytest.mark.breadth) for n in ("gpt2", "resnet"))]
)
def test_a_loop_stays_inside_and_unchanged(name: str) -> None:
    network = NETWORKS[name]
    plain, fitted, optimizers = _fitted(network, 0.8)
    expected = list(_loop(network, plain, optimizers[0], 11))
    found = list(_loop(network, fitted, optimizers[1], 11))
    assert _equal(expected, found)
    assert _equal(_state(plain, optimizers[0]), _state(fitted, optimizers[1]))
    stats = lowtide.memory_stats(fitted)
    assert stats.budget_kind == "enforced"
    assert stats.peak_B <= stats.reserved_B <= stats.budget_B
    assert (
        stats.misplaced_allocations == stats.spills == stats.refusals_for_capacity == stats.refusals_for_contiguity == 0
    )
    assert stats.planned_hits > 0
    assert stats.forwards == 12  # the evaluation is one of them


def test_the_prediction_is_what_happens() -> None:
    network = NETWORKS["tied"]
    _, fitted, optimizers = _fitted(network, 0.6)
    for batch in network.batches(3):
        optimizers[1].zero_grad()
        network.loss(fitted, batch).backward()
        optimizers[1].step()
    plan, stats = fitted.lowtide.plan, lowtide.memory_stats(fitted)
    fixed_B = plan.record.fixed_B - plan.record.reserve_B
    assert abs(stats.reserved_B - plan.reserved_B) <= 0.01 * (plan.reserved_B - fixed_B)
    assert stats.predicted_B == plan.reserved_B <= plan.budget_B


def test_gradients_accumulate_and_outputs_are_kept() -> None:
    network = ANSWERING
    plain, fitted, optimizers = _fitted(network, 1.6)
    results = []
    for module, optimizer in zip((plain, fitted), optimizers, strict=True):
        torch.manual_seed(5)
        kept = None
        for _ in range(3):
            optimizer.zero_grad()
            for batch in network.batches(3):
                kept = network.outputs(module, batch)  # the one before lives until this one is there
                network.loss_in(kept).backward()
            optimizer.step()
        results.append([*_state(module, optimizer), network.loss_in(kept).detach()])
    assert _equal(*results)
    stats = lowtide.memory_stats(fitted)
    assert stats.misplaced_allocations == stats.spills == 0
    assert stats.reserved_B <= stats.budget_B


def test_gradients_lie_together_in_a_model_that_torch_compile_hands_over() -> None:
    network = ANSWERING
    torch._dynamo.reset()
    plain = network.build()
    ours = twin(plain)
    ours.compile(backend="lowtide", options={"budget": "200% of plain", "work": 1_000})
    first, second = network.batches(2)
    network.loss(ours, first).backward()
    known = {id(p.grad) for p in ours.parameters() if p.grad is not None}
    network.loss(ours, second)  # which finds the gradients of the pass before in its way
    found = sorted(
        (g.data_ptr(), g.untyped_storage().nbytes())
        for g in (p.grad for p in ours.parameters() if p.grad is not None)
        if g.untyped_storage().nbytes() >= SMALL_B
    )
    assert known == {id(p.grad) for p in ours.parameters() if p.grad is not None}
    assert len(found) > 3
    ends = [at + rounded_B(size_B) for at, size_B in found]
    assert [at for at, _ in found[1:]] == ends[:-1]


def test_a_second_pass_that_cannot_fit_is_refused_before_it_runs() -> None:
    network = NETWORKS["tied"]
    _, fitted, _ = _fitted(network, 0.6)
    batch = network.batches(1)[0]
    held = [network.loss(fitted, batch)]
    before = [p.detach().clone() for p in fitted.parameters()]

    def hoard() -> None:
        for _ in range(20):
            held.append(network.loss(fitted, batch))

    with pytest.raises(lowtide.InfeasibleBudget, match="earlier steps hold") as caught:
        hoard()
    assert caught.value.budget_B == lowtide.memory_stats(fitted).budget_B
    assert _equal(before, [p.detach() for p in fitted.parameters()])
    held.clear()
    gc.collect()
    network.loss(fitted, batch).backward()  # nothing is lost


def test_code_between_that_does_not_fit_is_warned_of() -> None:
    network = NETWORKS["tied"]
    _, fitted, _ = _fitted(network, 0.5)
    batch = network.batches(1)[0]
    loss = network.loss(fitted, batch)
    waste = torch.empty(lowtide.memory_stats(fitted).budget_B)
    loss.backward()
    assert lowtide.memory_stats(fitted).spills == 1
    del waste
    fitted.zero_grad()
    with pytest.warns(lowtide.BudgetWarning, match="found no space"):
        network.loss(fitted, batch).backward()


def test_the_process_is_held_inside_if_asked() -> None:
    network = NETWORKS["tied"]
    _, fitted, optimizers = _fitted(network, 1.2, scope="process")
    batch = network.batches(1)[0]
    try:
        network.loss(fitted, batch).backward()
        optimizers[1].step()
        stats = lowtide.memory_stats(fitted)
        with pytest.raises(torch.OutOfMemoryError, match=r"lowtide: the budget of .* largest hole"):
            torch.empty(stats.budget_B)
        refused: list[BaseException] = []
        thread = threading.Thread(target=_catch, args=(lambda: torch.empty(stats.budget_B), refused))
        thread.start()
        thread.join()
        assert isinstance(refused[0], torch.OutOfMemoryError)
        assert lowtide.memory_stats(fitted).refusals_for_capacity == 2
    finally:
        fitted.lowtide.session.budget_scope.release()


def _catch(call: Callable[[], object], errors: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:  # handed to the test, whatever it is
        errors.append(error)


def test_a_thread_that_allocates_during_planned_steps_changes_nothing() -> None:
    network = NETWORKS["unet"]
    plain, fitted, optimizers = _fitted(network, 0.5)
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            torch.ones(3000).add_(1)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        found = list(_loop(network, fitted, optimizers[1], 3))
    finally:
        done.set()
        thread.join()
    assert _equal(found, list(_loop(network, plain, optimizers[0], 3)))
    assert lowtide.memory_stats(fitted).misplaced_allocations == 0


def test_a_snapshot_names_holders_and_lines() -> None:
    network = NETWORKS["tied"]
    _, fitted, optimizers = _fitted(network, 0.8)
    assert lowtide.snapshot(fitted) == ()
    loss = network.loss(fitted, network.batches(1)[0])
    held = lowtide.snapshot(fitted)
    assert any("aten." in h.holder and ".py:" in h.holder for h in held)
    assert all(a.address_B + a.size_B <= b.address_B for a, b in itertools.pairwise(held))
    loss.backward()
    optimizers[1].step()
    assert any("optimizer" in h.holder for h in lowtide.snapshot(fitted))


def test_a_saved_plan_keeps_its_addresses() -> None:
    network = NETWORKS["mixed"]
    torch._dynamo.reset()
    module = network.build()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad])
    args, kwargs = _call(network, network.batches(1)[0])
    plan = lowtide.plan(module, args, kwargs, budget="95% of plain", optimizer=optimizer)
    lowtide.fit(module, plan=plan, optimizer=optimizer)
    network.loss(module, network.batches(1)[0]).backward()
    assert module.lowtide.plan.record.layout == plan.record.layout
    accounted = lowtide.fit(twin(network.build()), plan=plan, scope="none")
    network.loss(accounted, network.batches(1)[0]).backward()
    assert accounted.lowtide.plan.budget_kind == "accounted"
    assert lowtide.memory_stats(accounted).budget_kind == "accounted"


def test_tensors_outlive_the_model_and_its_arena() -> None:
    network = NETWORKS["mixed"]
    _, fitted, optimizers = _fitted(network, 1.0)
    loss = network.loss(fitted, network.batches(1)[0])
    loss.backward()
    optimizers[1].step()
    gradients = [p.grad for p in fitted.parameters() if p.grad is not None]
    copies = [g.clone() for g in gradients]
    instants = [t for s in optimizers[1].state.values() for t in s.values()]
    fitted.lowtide.set_budget("300% of plain")
    network.loss(fitted, network.batches(1)[0])
    del fitted
    optimizers.clear()
    gc.collect()
    assert _equal(gradients, copies)
    assert all(torch.isfinite(m).all() for m in instants)


def test_memory_stats_names_what_is_missing() -> None:
    with pytest.raises(lowtide.LowtideError, match=r"lowtide\.fit"):
        lowtide.memory_stats(nn.Linear(2, 2))
