"""The largest batch: found by planning, tried with one step that leaves no trace, and honest where it fails."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.api.size_search import largest
from lowtide.device.arena import Arena
from lowtide.device.storage import place_of
from lowtide.session.inputs import read_batch, vary
from tests.networks import Mixed, Tied


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `Mixed` is called with."""
    return torch.randn(n, 12), torch.arange(n) % 5


class Chain(nn.Module):
    """Layers whose activations outweigh their parameters; the loss is the caller's."""

    def __init__(self, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Everything:
    """All that a trial must not change, as it was."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.contents = [t.detach().clone() for t in model.state_dict().values()]
        self.gradients = [p.grad for p in model.parameters()]
        self.values = [None if g is None else g.clone() for g in self.gradients]
        self.generator = torch.get_rng_state()
        self.state = self._state()

    def _state(self) -> list[Any]:
        if self.optimizer is None:
            return []
        found = []
        for entry in self.optimizer.state.values():
            found += [(k, v.clone() if isinstance(v, torch.Tensor) else v) for k, v in entry.items()]
        return found

    def check(self) -> None:
        now = list(self.model.state_dict().values())
        assert all(torch.equal(a, b) for a, b in zip(self.contents, now, strict=True))
        assert all(p.grad is g for p, g in zip(self.model.parameters(), self.gradients, strict=True))
        kept = zip(self.gradients, self.values, strict=True)
        assert all(g is None or v is None or torch.equal(g, v) for g, v in kept)
        assert torch.equal(self.generator, torch.get_rng_state())
        assert not hasattr(self.model, "lowtide")
        state = self._state()
        assert [k for k, _ in state] == [k for k, _ in self.state]
        for (_, a), (_, b) in zip(state, self.state, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_it_finds_tries_and_leaves_no_trace() -> None:
    model = Mixed().train()
    optimizer = torch.optim.AdamW(model.parameters())
    model(*pairs(8)).backward()
    optimizer.step()  # there is state to keep, and there are gradients
    before = Everything(model, optimizer)
    earlier = {id(o) for o in gc.get_objects() if type(o) is Arena}  # whose addresses may have been given out again
    found = lowtide.max_batch(pairs, model, "256KiB", optimizer=optimizer, multiple_of=32, work=2_000)
    before.check()
    arenas = [o for o in gc.get_objects() if type(o) is Arena and id(o) not in earlier]
    state = [t for entry in optimizer.state.values() for t in entry.values()]
    left = [t.untyped_storage() for t in (*model.parameters(), *model.buffers(), *state)]
    assert all(place_of(storage, arena) is None for storage in left for arena in arenas)
    assert found.verified
    assert 0 < found.plain_size < found.size
    assert found.plan.reserved_B <= found.plan.budget_B == 256 * 1024
    assert found.tried[-1].how == "run"
    assert found.tried[-1].fits
    assert f"MaxBatch({found.size}, plain {found.plain_size};" in repr(found)
    next_one = lowtide.plan(model, pairs(found.plain_size), budget="256KiB", optimizer=optimizer, work=2_000)
    assert next_one.overhead == pytest.approx(0, abs=1e-9)
    with pytest.raises(lowtide.InfeasibleBudget):
        lowtide.plan(model, pairs(found.size * 3 // 2), budget="256KiB", optimizer=optimizer, work=1)
    fitted = lowtide.fit(model, plan=found.plan, optimizer=optimizer)
    fitted(*pairs(found.size)).backward()
    assert fitted.lowtide.plan.record.schedule == found.plan.record.schedule


@pytest.mark.breadth
def test_a_sequence_length_serves_as_a_size() -> None:
    model = Tied().train()
    found = lowtide.max_batch(
        lambda n: torch.arange(3 * n).reshape(3, n) % 50,
        model,
        "256KiB",
        high=64,
        multiple_of=16,
        verify=False,
        work=1_000,
    )
    assert not found.verified
    assert 0 < found.plain_size < found.size <= 64
    assert found.tried[-1].how == "planned"


@pytest.mark.breadth
def test_multiples_bounds_and_a_limit_of_the_overhead() -> None:
    model = Chain().train()
    make = lambda n: {"x": torch.randn(n, 64)}  # noqa: E731
    options: dict[str, Any] = {"multiple_of": 8, "verify": False, "work": 2_000}
    free = lowtide.max_batch(make, model, "512KiB", **options)
    none = lowtide.max_batch(make, model, "512KiB", overhead_limit=0.0, **options)
    few = lowtide.max_batch(make, model, "512KiB", high=20, **options)
    assert free.size % 8 == none.size % 8 == 0
    assert few.size == few.plain_size == 16
    assert none.size == none.plain_size == free.plain_size < free.size
    assert none.plan.overhead <= 0.001
    assert any("over the limit" in t.note for t in none.tried)


def test_a_trial_that_fails_is_followed_by_the_next_smaller_size() -> None:
    model = Chain().train()
    waste = list[torch.Tensor]()

    def loss(outputs: torch.Tensor) -> torch.Tensor:
        """Holds what no planner could foresee, except at sizes that leave enough free."""
        if len(outputs) > limit:
            waste.append(torch.zeros(2**20))
        return outputs.square().sum()

    limit = 32
    before = Everything(model)
    found = lowtide.max_batch(
        lambda n: torch.randn(n, 64), model, "1MiB", loss=loss, multiple_of=16, high=64, work=1_000
    )
    before.check()
    assert found.verified
    assert found.size == 32
    assert [t.size for t in found.tried if t.how == "run"] == [64, 48, 32]
    assert "size 64 was rejected: a step ran, and took" in found.note


def test_interrupted_it_changes_nothing() -> None:
    model = Mixed().train()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def interrupt(_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    handle = model.first.weight.register_hook(interrupt)
    before = Everything(model, optimizer)
    with pytest.raises(KeyboardInterrupt):
        lowtide.max_batch(pairs, model, "256KiB", optimizer=optimizer, high=8)
    before.check()
    handle.remove()
    model(*pairs(4)).backward()


def test_a_model_that_breaks_and_has_its_loss_outside() -> None:
    class Broken(Chain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            torch._dynamo.graph_break()
            return super().forward(x)

    model = Broken(2).train()
    before = Everything(model)
    found = lowtide.max_batch(lambda n: (torch.randn(n, 64),), model, "1MiB", multiple_of=32, work=1_000)
    before.check()
    assert found.verified
    assert found.size >= found.plain_size > 0


class Fixing(Chain):
    """Looks its size up in a table, so that every size is a program of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * {n: float(n % 7 + 1) for n in range(1000)}[x.shape[0]]


def test_a_model_that_fixes_its_sizes_is_captured_for_each() -> None:
    found = lowtide.max_batch(
        lambda n: torch.randn(n, 64), Fixing(1).train(), "128KiB", scope="none", multiple_of=16, work=1_000
    )
    assert found.size >= found.plain_size > 0
    assert not found.verified
    assert "nothing held it inside" in found.note


def test_too_small_a_budget_names_floor_and_remedy() -> None:
    with pytest.raises(lowtide.InfeasibleBudget, match=r"(?s)not even size 4 fits.*Proved floor") as caught:
        lowtide.max_batch(pairs, Mixed().train(), 1024, multiple_of=4, work=1_000)
    assert caught.value.floor_B > 1024
    assert caught.value.smallest_B is not None


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (pairs, {"budget": "60% of plain"}, lowtide.BudgetError, "grows with the batch"),
        (lambda _: pairs(4), {"budget": "1MiB"}, lowtide.LowtideError, "same shapes"),
        (pairs, {"budget": "1MiB", "low": 5, "high": 7, "multiple_of": 4}, lowtide.LowtideError, "raise high"),
        (pairs, {"budget": "1MiB", "low": 0}, lowtide.LowtideError, "out of range"),
    ],
)
def test_what_makes_no_sense_is_refused(
    make: Callable[[int], Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        lowtide.max_batch(make, Mixed().train(), **options)


def test_a_fitted_model_is_refused() -> None:
    with pytest.raises(lowtide.LowtideError, match="unfit"):
        lowtide.max_batch(pairs, lowtide.fit(Mixed(), budget="1GiB"), "1MiB")


def test_for_a_machine_that_is_not_here_nothing_is_run() -> None:
    ran = []
    model = Mixed().train()
    model.first.weight.register_hook(lambda g: ran.append(g))  # type: ignore[func-returns-value]
    found = lowtide.max_batch(pairs, model, "256KiB", machine="h200", multiple_of=64, work=1_000)
    assert not ran
    assert not found.verified
    assert found.size > found.plain_size > 0


def test_batches_come_in_several_forms() -> None:
    x, y = torch.ones(2), torch.ones(3)
    assert read_batch(x) == ((x,), {})
    assert read_batch([x, y]) == ((x, y), {})
    assert read_batch({"x": x}) == ((), {"x": x})
    assert read_batch(((x,), {"y": y})) == ((x,), {"y": y})
    assert read_batch(({"x": x},)) == (({"x": x},), {})


def test_an_example_is_given_another_size() -> None:
    model = Mixed()
    x, y = pairs(4)
    x = torch.arange(48.0).reshape(4, 12)
    varied = vary(model, ((x,), {"y": y}))
    (wide,), named = varied(6)
    assert varied.size == 4
    assert torch.equal(wide, torch.cat([x, x[:2]]))
    assert named["y"].shape == (6,)
    (first, second), _ = vary(model, ((x, x), {}))(6)
    assert first is second
    narrow, same = vary(model, ((x, y), {}), only=["x:1"])(5)[0]
    assert torch.equal(narrow, x[:, :5])
    assert same is y
    for only, words in ((["z"], "no tensor argument z"), (["x:1", "y"], "different extents"), (["x:b"], "NAME:DIM")):
        with pytest.raises(lowtide.LowtideError, match=words):
            vary(model, ((x, y), {}), only=only)
    with pytest.raises(lowtide.LowtideError, match="no dimension 1"):
        vary(model, ((x, y), {}), dim=1)


@pytest.mark.parametrize("limit", range(1, 40))
@pytest.mark.parametrize("error", [-3, 0, 5])
def test_the_search_finds_the_limit_though_guesses_err(limit: int, error: int) -> None:
    asked: list[int] = []

    def ask(n: int) -> bool:
        asked.append(n)
        return n <= limit

    def guess(n: int) -> bool:
        near = any(abs(n - known) <= 8 for known in asked)
        return n <= limit + (0 if near else error)

    assert largest(guess, ask, low=1, high=None, step=1) == limit
    assert largest(guess, ask, low=1, high=30, step=1) == min(limit, 30)
    assert largest(guess, ask, low=4, high=None, step=4) == (limit // 4 * 4 or None)
    assert len(set(asked)) < 25


def test_without_monotony_the_answer_is_still_true() -> None:
    right = {1, 2, 3, 5, 6, 11}
    found = largest(right.__contains__, right.__contains__, low=1, high=None, step=1)
    assert found in right
    assert largest(lambda _: False, lambda _: False, low=3, high=None, step=1) is None
    assert largest(lambda _: False, right.__contains__, low=1, high=None, step=1) == 2
