"""Contributions to a gradient are added up in eager's order, wherever else the tensor is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import storage as storages
from tests.networks import twin


class Tied(nn.Module):
    """One weight, used twice on either side of a break, and an activation that both sides use."""

    def __init__(self, breaks: bool = True) -> None:
        super().__init__()
        self.linear, self.other, self.breaks = nn.Linear(32, 32), nn.Linear(32, 32), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(self.linear(x).tanh()).tanh()
        u = self.other(h).tanh() + h.sin() + h.cos()
        if self.breaks:
            torch._dynamo.graph_break()
        u = u * h + h.exp() + h.square().sin()
        return self.other(self.linear(self.linear(u).tanh())).square().mean()


class Unrolled(nn.Module):
    """One graph that uses a weight many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.linear, self.times = nn.Linear(32, 32), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.linear(x).tanh()
        return x


class Language(nn.Module):
    """One weight that is embedding and last layer, of enough bytes to save some."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(4_000, 128), nn.Linear(128, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.mix(self.embedding(tokens)).tanh() @ self.embedding.weight.t()


def _gradients(model: nn.Module, loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for seed in range(2):
        model.zero_grad()
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        loss(model, x).backward()
        found += [x.grad, *(p.grad for p in model.parameters())]
    return found


def _same(plain: nn.Module, fitted: nn.Module, loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> bool:
    pairs = zip(_gradients(plain, loss), _gradients(fitted, loss), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


LOSSES: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "one call": lambda m, x: m(x).square().mean(),
    "two calls, one backward": lambda m, x: m(x).square().mean() + m(x.sin()).mean(),
    "a penalty on the weights": lambda m, x: m(x).square().mean() + sum(p.cos().sum() for p in m.parameters()),
    "the input is used outside": lambda m, x: (m(x).square() + x.sin() * x).mean(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("make", [Tied, lambda: Tied(False), lambda: Unrolled(2)], ids=["broken", "whole", "twice"])
def test_gradients_are_those_of_plain(make: Callable[[], nn.Module], loss: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = make()
    if isinstance(plain, Tied) and not plain.breaks and loss != "one call":
        pytest.skip("a weight that one graph uses more than twice: see below")
    assert _same(plain, lowtide.fit(twin(plain), budget="1GiB", work=200), LOSSES[loss])


def test_a_network_unrolled_over_many_steps_holds_one_gradient_per_weight() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Unrolled(12)
    fitted = lowtide.fit(twin(plain), budget="1GiB", work=200)
    assert _same(plain, fitted, LOSSES["one call"])
    gradients = [v for v in fitted.lowtide.plan.record.graph.values if v.leaves == 1 and v.size_B == 4 * 32 * 32]
    assert len(gradients) == 1


def test_calls_whose_sums_would_round_otherwise_are_refused() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Unrolled(12)
    model = lowtide.fit(twin(plain), budget="1GiB", work=200)
    with pytest.raises(lowtide.BackwardError, match="use by use"):
        _gradients(model, LOSSES["two calls, one backward"])
    torch._dynamo.reset()
    model = lowtide.fit(twin(plain), budget="1GiB", numerics="reassociated", work=200)
    loss = LOSSES["two calls, one backward"]
    pairs = zip(_gradients(plain, loss), _gradients(model, loss), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_a_weight_whose_gradient_comes_in_shares_moves_into_the_arena() -> None:
    torch._dynamo.reset()
    model = lowtide.fit(nn.Sequential(linear := nn.Linear(64, 64), nn.GELU(), linear), budget="1GiB", work=200)
    for _ in range(2):
        model(torch.randn(64, 64)).sum().backward()
        model.zero_grad()
    hard_budget = model.lowtide.session.budget_scope.hard_budget
    if hard_budget is None:
        pytest.skip("no compiler")
    assert storages.place_of(linear.weight.untyped_storage(), hard_budget.arena) is not None
    assert lowtide.memory_stats(model).misplaced_allocations == 0


def _language(**options: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Language()
    tokens = torch.randint(4_000, (2, 8))
    return plain, lowtide.fit(twin(plain), budget="64MiB", work=200, **options), tokens


def test_the_gradient_of_a_tied_embedding_is_added_in_parts() -> None:
    plain, fitted, tokens = _language()
    for model in (plain, fitted):
        model.embedding.weight.register_hook(lambda g: g * 0.5)
        for _ in range(2):
            model(tokens).square().mean().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), fitted.parameters(), strict=True))
    graph = fitted.lowtide.plan.record.graph
    weight_B = plain.embedding.weight.nbytes
    assert [v.size_B for v in graph.values if v.leaves == 1].count(weight_B) == 1
    assert any(r.op == "lowtide.add_embedding_gradient" for r in graph.recipes)
    fitted.zero_grad()
    fitted.lowtide.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        fitted(tokens)
    assert caught.value.smallest_B < 3 * weight_B, "the weight and one gradient of it"


TIED_LOSSES: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "two calls": lambda m, x: m(x).square().mean() + m(x.flip(0)).mean(),
    "a penalty": lambda m, x: m(x).square().mean() + m.embedding.weight.square().sum(),
}


@pytest.mark.parametrize("loss", TIED_LOSSES)
def test_what_others_would_add_to_a_sum_is_refused_or_declared(loss: str) -> None:
    plain, fitted, tokens = _language()
    with pytest.raises(lowtide.BackwardError, match="use by use"):
        TIED_LOSSES[loss](fitted, tokens).backward()
    fitted.zero_grad()
    fitted(tokens).square().mean().backward()
    plain(tokens).square().mean().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), fitted.parameters(), strict=True))
    assert not fitted.embedding.weight._backward_hooks
    plain, fitted, tokens = _language(numerics="reassociated")
    for model in (plain, fitted):
        TIED_LOSSES[loss](model, tokens).backward()
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(plain.parameters(), fitted.parameters(), strict=True))
