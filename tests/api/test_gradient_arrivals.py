"""Gradients that come to a backward otherwise than was foreseen: of some outputs, in other layouts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import differences, train, twin

Outputs = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Heads(nn.Module):
    """Two outputs, one of them transposed; draws random numbers, updates statistics on which nothing depends."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(16, 48), nn.BatchNorm1d(48), nn.Dropout(0.3)
        self.left, self.right = nn.Linear(48, 24), nn.Linear(48, 8)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> Outputs:
        h = self.drop(F.gelu(self.norm(self.body(x))))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.left(h).t(), self.right(h)


class Images(nn.Module):
    """Feature maps, of one pixel in the end, in which strides of dimensions of size 1 differ."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.last, self.norms = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norms(self.last(F.relu(self.norm(self.first(x)))))


LOSSES: dict[str, Callable[[Outputs], torch.Tensor]] = {
    "of one output": lambda o: o[0].square().mean(),
    "of the other, by a sum": lambda o: (o[1] * 1.5).sum() / 7,
    "of both, transposed back": lambda o: (o[0].t().contiguous() * torch.arange(24.0)).mean() + o[1].sum() / 3,
    "of parts of one tensor": lambda o: torch.cat([o[0].reshape(-1), o[1].reshape(-1)]).cumsum(0).mean(),
    "with a permuted weight": lambda o: (o[0] * torch.rand(64, 24).t()).sum() + (o[1].t() * torch.rand(8, 64)).sum(),
}


def _alike(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    """Whether two lists of tensors are the same bits; where one has none, the other has none."""
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def _batches(count: int = 3) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(64, 16, generator=g) for _ in range(count)]


@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "two graphs"])
@pytest.mark.parametrize(
    "loss", [n if n.startswith("of both") else pytest.param(n, marks=pytest.mark.breadth) for n in LOSSES]
)
@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
def test_every_loss_gives_the_bits_of_eager(loss: str, breaks: bool) -> None:
    torch.manual_seed(0)
    plain = Heads(breaks=breaks)
    fitted = lowtide.fit(twin(plain), budget="2MiB", work=200)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return LOSSES[loss](model(x))

    expected = train(plain, step, _batches())
    assert differences(expected, train(fitted, step, _batches())) == []
    assert lowtide.memory_stats(fitted).spills == 0


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "two graphs"])
def test_losses_may_change_from_step_to_step(breaks: bool) -> None:
    torch.manual_seed(0)
    plain = Heads(breaks=breaks)
    fitted = lowtide.fit(twin(plain), budget="4MiB", work=200)
    losses = [*LOSSES.values(), *LOSSES.values()]
    for number, (loss, x) in enumerate(zip(losses, _batches(len(losses)), strict=True)):
        seen = []
        for model in (plain, fitted):
            torch.manual_seed(number)
            model.zero_grad()
            loss(model(x)).backward()
            buffers = [b.clone() for b in model.buffers()]
            seen.append([*(p.grad for p in model.parameters()), *buffers, torch.get_rng_state()])
        assert _alike(*seen)


def test_one_pixel_with_channels_last_or_not() -> None:
    torch.manual_seed(0)
    plain = Images()
    fitted = lowtide.fit(twin(plain), budget="2MiB", work=200)
    g = torch.Generator().manual_seed(1)
    small, large = (torch.randn(4, 3, n, n, generator=g) for n in (4, 12))
    batches = [x.contiguous(memory_format=f) for x in (small, large) for f in _FORMATS]
    expected = train(plain, lambda m, x: m(x).square().mean(), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x).square().mean(), batches)) == []
    assert lowtide.misplaced_allocations(fitted) == ()


_FORMATS = (torch.contiguous_format, torch.channels_last)


def test_what_comes_as_before_is_captured_once() -> None:
    fitted = lowtide.fit(Heads(), budget="2MiB", work=200)
    calls = []
    for x in _batches(4):
        before = fitted.lowtide.calls
        LOSSES["of one output"](fitted(x)).backward()
        calls.append(fitted.lowtide.calls - before)
    assert calls == [2, 1, 1, 1], "in the first step the forward was computed again"
    assert len(fitted.lowtide.plans) == 1


def test_graphs_whose_gradients_came_otherwise_in_the_first_step_are_planned_together_at_once() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(16, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.gelu(self.body(x))
            torch._dynamo.graph_break()
            return torch.sin(x)

    fitted = lowtide.fit(Broken(), budget="2MiB", work=200)
    calls = []
    for x in _batches(3):
        before = fitted.lowtide.calls
        (fitted(x).t().contiguous() * torch.rand(48, 64)).sum().backward()  # transposed for both graphs
        calls.append(fitted.lowtide.calls - before)
    assert calls == [4, 2, 2], "in the first step both forwards were computed again"
    assert len(fitted.lowtide.plans) == 1
    assert fitted.lowtide.plan.record.graphs == 2


def test_an_output_without_dimensions_is_taken_for_the_loss() -> None:
    class Inside(Heads):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            left, right = super().forward(x)
            return left.square().mean(), left, right

    fitted = lowtide.fit(Inside(), budget="2MiB", work=200)
    (x,) = _batches(1)
    fitted(x)[0].backward()
    assert fitted.lowtide.calls == 1
    assert fitted.right.weight.grad is None, "nothing flows there"


def test_a_saved_plan_serves_a_new_process(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Heads()
    first = lowtide.fit(twin(plain), budget="2MiB", work=200)
    (x,) = _batches(1)
    LOSSES["of the other, by a sum"](first(x)).backward()
    first.lowtide.plan.save(tmp_path / "plan.json")
    torch._dynamo.reset()
    again = lowtide.fit(twin(plain), plan=str(tmp_path / "plan.json"))
    LOSSES["of the other, by a sum"](again(x)).backward()
    assert again.lowtide.calls == 1, "its gradients were expected"
    assert again.lowtide.plan.record.graph.key == first.lowtide.plan.record.graph.key


def test_a_plan_for_other_outputs_is_refused_as_such(tmp_path: Path) -> None:
    first = lowtide.fit(nn.Linear(4, 8), budget="1MiB", work=100)
    first(torch.randn(2, 3, 4)).square().mean().backward()
    first.lowtide.plan.save(tmp_path / "plan.json")
    torch._dynamo.reset()
    other = lowtide.fit(nn.Linear(4, 8), plan=str(tmp_path / "plan.json"))
    with pytest.raises(lowtide.PlanMismatch):
        other(torch.randn(6, 4)).sum().backward()


def test_a_graph_that_is_kept_gives_its_gradients_again() -> None:
    torch.manual_seed(0)
    plain = Heads().eval()
    fitted = lowtide.fit(copy.deepcopy(plain), budget="2MiB", work=200)
    (x,) = _batches(1)
    seen = []
    for model in (plain, fitted):
        loss = LOSSES["of both, transposed back"](model(x))
        loss.backward(retain_graph=True)
        loss.backward()
        seen.append([p.grad for p in model.parameters()])
    assert _alike(*seen)


class Towers(nn.Module):
    """Two inputs, each with an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Outputs:
        return self.left(x), self.right(y)


class Ignoring(torch.autograd.Function):
    """Has no gradient to give."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, __: torch.Tensor) -> None:
        return None


def test_what_lies_before_the_model_gets_its_gradients_when_they_come() -> None:
    torch.manual_seed(0)
    plain = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), Towers()])
    fitted = copy.deepcopy(plain)
    lowtide.fit(fitted[2], budget="1MiB", work=100)
    losses = [lambda a, _: a, lambda a, b: a + b, lambda _, b: b, lambda a, b: Ignoring.apply(a) + b, lambda a, _: a]
    for loss in [*losses, lambda a, _: Ignoring.apply(a), *losses]:
        x, seen = torch.randn(4, 8), []
        for one, other, towers in (plain, fitted):
            for module in (one, other, towers):
                module.zero_grad()
            loss(*(o.square().sum() for o in towers(one(x), other(x)))).backward()
            seen.append([p.grad for module in (one, other, towers) for p in module.parameters()])
        assert _alike(*seen)


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_graph_with_a_number_of_python_is_captured_again() -> None:
    """Dynamo hands a float over as a tensor, and reads it inside: without its value, a second capture cannot."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.body(x) * random.random() + random.gauss(0, 1)).t()

    def trained(budget: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        random.seed(0)
        model = Noisy()
        if budget:
            lowtide.fit(model, budget=budget)
        found = []
        for _ in range(3):
            out = model(torch.randn(32, 8))
            (out.contiguous() * torch.arange(32.0)).sum().backward()
            found += [out.detach().clone(), *(p.grad.clone() for p in model.parameters())]
        return found

    assert _alike(trained(None), trained("1MiB"))


class Passing(nn.Module):
    """Two graphs, of which the second saves its result, and not what it is given; the first updates state."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(16, 48), nn.BatchNorm1d(48)
        self.shift = nn.Parameter(torch.zeros(48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.norm(self.body(x)), 0.1) * 0.1
        torch._dynamo.graph_break()
        return torch.exp(x) + self.shift


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
def test_losses_may_change_where_a_part_saves_nothing_that_it_is_given() -> None:
    """Its forward is computed once more from that: an earlier version held it by a weak reference alone."""
    torch.manual_seed(0)
    plain = Passing()
    fitted = lowtide.fit(twin(plain), budget="2MiB", work=200)
    for number, x in enumerate(_batches(4)):
        seen = []
        for model in (plain, fitted):
            torch.manual_seed(number)
            model.zero_grad()
            y = model(x)
            (y.square().mean() if number < 2 else (y.t().contiguous() * 2).sum()).backward()
            seen.append([*(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())])
        assert _alike(*seen)


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
def test_a_refused_step_says_what_it_has_changed_and_can_be_repeated() -> None:
    torch.manual_seed(0)
    plain = Passing()
    fitted = lowtide.fit(twin(plain), budget="2MiB", work=200)
    torch.manual_seed(1)
    losses = [lambda y: y.square().mean()] * 2 + [lambda y: (y.t().contiguous() * 2).sum()] * 2
    for number, (loss, x) in enumerate(zip(losses, _batches(4), strict=True)):
        seen = []
        for model in (plain, fitted):
            torch.manual_seed(number)
            model.zero_grad()
            before = {n: b.clone() for n, b in model.named_buffers()}
            y = model(x)
            if model is fitted and number == 2:
                with torch.no_grad():
                    model.shift.add_(0.0)
                with pytest.raises(lowtide.errors.BackwardError) as caught:
                    loss(y).backward()
                moved = {n for n, b in model.named_buffers() if not torch.equal(b, before[n])}
                assert moved == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
                assert all(name in str(caught.value) for name in (*moved, "torch's random generator", "zero_grad"))
                assert all(p.grad is None for p in model.parameters())
                for name, buffer in model.named_buffers():
                    buffer.copy_(before[name])
                torch.manual_seed(number)
                y = model(x)
            loss(y).backward()
            seen.append([*(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())])
            seen[-1].append(torch.get_rng_state())
        assert _alike(*seen)


def test_losses_that_change_are_not_taken_for_another_path() -> None:
    fitted = lowtide.fit(Heads(breaks=True), budget="4MiB", work=200)
    one, other = list(LOSSES.values())[:2]
    (x,) = _batches(1)
    for loss in (one, one, other, other, one):
        loss(fitted(x)).backward()
    with pytest.warns(lowtide.BudgetWarning, match="how its gradients come changes from step to step"):
        fitted(x)


class Numbers(nn.Module):
    """Python numbers that torch makes constants where sizes vary, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rate, self.slope = nn.Linear(8, 8), 0.25, 0.3

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.leaky_relu(F.dropout(self.layer(x), self.rate), self.slope)
        return h.square().mean(), h * self.slope


def test_a_graph_with_numbers_in_it_is_captured_again() -> None:
    def trained(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        for size in (4, 6, 9):
            model(torch.ones(size, 8))[1].sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    torch._dynamo.reset()
    plain = Numbers()
    fitted = lowtide.fit(copy.deepcopy(plain), "1MiB", work=50, dynamic=True)
    assert all(map(torch.equal, trained(plain), trained(fitted)))


def test_a_budget_is_named_for_gradients_as_they_are_expected() -> None:
    (x,) = _batches(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        lowtide.fit(nn.Linear(x.shape[-1], 64), 1, work=50)(x)
    assert "for gradients as they are expected" in caught.value.__notes__[0]
