"""Forwards and backwards in every order and number that autograd allows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device import shim
from tests.semantics.pairs import WORK, Wide, batches, gradients, same


class Heads(nn.Module):
    """A body with two heads; losses are the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 32)
        self.a, self.b = nn.Linear(32, 8), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.dropout(F.gelu(self.second(F.gelu(self.first(x)))), 0.1, self.training)
        return self.a(h), torch.tanh(self.b(h))


class Deep(nn.Module):
    """Enough layers that recomputing one saves something."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = F.dropout(F.gelu(layer(h)), 0.1, self.training)
        return h


OTHER = [x.flip(0) for x in batches(3)]


def deep() -> nn.Module:
    """The model of most tests here."""
    return Wide(Deep())


def _copied(seen: list[Any]) -> list[Any]:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), seen)


def test_losses_outside_the_model() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches():
            a, b = module(x)
            (F.mse_loss(a, x) + F.smooth_l1_loss(b, x[:, :4]) * 0.5).backward()
            seen += [a, b, gradients(module)]
            module.zero_grad()
        return _copied(seen)

    same(Heads, scenario, spare=0.3)


def test_one_of_several_outputs() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for index in (0, 1, 0):
            module(batches(1)[0])[index].square().mean().backward()
            seen.append(gradients(module))
            module.zero_grad()
        return seen

    same(Heads, scenario, spare=0.3)


def test_several_losses_of_one_forward() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            a, b = module(x)
            torch.autograd.backward([a, b], [torch.ones_like(a), b.detach().sign()])
            seen.append(gradients(module))
            a, b = module(x)
            a.square().mean().backward(retain_graph=True)
            b.square().mean().backward()
            seen.append(gradients(module))
            module.zero_grad()
        return seen

    same(Heads, scenario, spare=2.0, recomputes=False)


def test_a_retained_graph() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            loss = module(x)
            loss.backward(retain_graph=True)
            loss.backward(retain_graph=True)
            (loss * 2).backward()
            seen += [loss, gradients(module)]
            module.zero_grad()
        return _copied(seen)

    same(deep, scenario, spare=2.0, recomputes=False)


def test_gradients_asked_for_by_name() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            x.requires_grad_()
            seen.append(torch.autograd.grad(module(x), [x, module.last.weight]))
            seen.append(torch.autograd.grad(module(x), list(module.parameters())))
            loss = module(x)
            seen.append(torch.autograd.grad(loss, x, retain_graph=True))
            loss.backward()
            seen += [x.grad, gradients(module)]
            module.zero_grad()
        return _copied(seen)

    same(deep, scenario, spare=4.0, recomputes=False)


def test_gradients_of_inputs() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        weight = torch.full((8, 8), 0.1, requires_grad=True)
        for x in batches(2):
            y = torch.tanh(x @ weight)
            y.retain_grad()
            module(y).backward()
            seen += [y.grad, weight.grad, gradients(module)]
        return _copied(seen)

    same(deep, scenario, spare=0.5)


def _siamese(module: nn.Module) -> list[Any]:
    seen: list[Any] = []
    for x, y in zip(batches(3), OTHER, strict=True):
        left, right = module(x), module(y)
        ((left - right).square() + left).backward()
        seen += [left, right, gradients(module)]
        module.zero_grad()
    return _copied(seen)


def _first_forward_first_backward(module: nn.Module) -> list[Any]:
    seen: list[Any] = []
    for x, y in zip(batches(3), OTHER, strict=True):
        losses = [module(x), module(y), module(x)]
        for loss in losses:
            loss.backward()
        seen += [*losses, gradients(module)]
        module.zero_grad()
    return _copied(seen)


def _one_ahead(module: nn.Module) -> list[Any]:
    """Each backward runs while the next forward is outstanding."""
    seen: list[Any] = []
    before = module(batches(1)[0])
    for x in batches(3):
        after = module(x)
        before.backward()
        seen += [before, gradients(module)]
        module.zero_grad()
        before = after
    before.backward()
    return _copied([*seen, gradients(module)])


def _adversarial(module: nn.Module) -> list[Any]:
    """Like a discriminator: real, fake with the graph into the generator kept, then again for the generator."""
    torch.manual_seed(4)
    generator = nn.Linear(8, 8)
    seen: list[Any] = []
    for x in batches(3):
        fake = torch.tanh(generator(x.flip(0)))
        real_loss = module(x)
        fake_loss = module(fake.detach())
        (fake_loss - real_loss).backward()
        seen.append(gradients(module))
        module.zero_grad()
        (-module(fake)).backward()
        seen += [generator.weight.grad, gradients(module)]
        generator.zero_grad()
        module.zero_grad()
    return _copied(seen)


ORDERS = {
    "siamese": _siamese, "first first": _first_forward_first_backward, "one ahead": _one_ahead,
    "adversarial": _adversarial,
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_several_forwards_before_their_backwards(order: str) -> None:
    same(deep, ORDERS[order], spare=6.0, recomputes=False)


def _repeated(module: nn.Module, step: Callable[[], list[Any]], refusals: list[str]) -> list[Any]:
    """A step that is repeated when it is refused; refused again and again, with the budget that the error names."""
    for attempt in range(8):
        torch.manual_seed(6)
        try:
            return step()
        except lowtide.InfeasibleBudget as error:
            refusals.append(str(error))
            module.zero_grad()
            if attempt >= 3:
                module.lowtide.set_budget(error.smallest_B)
    raise AssertionError("refused again and again")


def test_a_graph_that_is_kept_without_space_is_refused_and_fits_when_repeated() -> None:
    refusals: list[str] = []

    def step(module: nn.Module) -> list[Any]:
        loss = module(batches(1)[0])
        loss.backward(retain_graph=True)
        loss.backward()
        return [loss.detach().clone(), gradients(module)]

    fitted = same(deep, lambda m: _repeated(m, lambda: step(m), refusals), spare=0.6, recomputes=False, call=step)
    assert "retain_graph=True keeps what it would free" in refusals[0]
    assert fitted.lowtide.plan is not None


def test_forwards_that_wait_without_space_are_refused_and_fit_when_repeated() -> None:
    refusals: list[str] = []

    def step(module: nn.Module) -> list[Any]:
        losses = [module(batches(1)[0]), module(OTHER[0])]
        for loss in losses:
            loss.backward()
        return [*(loss.detach().clone() for loss in losses), gradients(module)]

    same(deep, lambda m: _repeated(m, lambda: step(m), refusals), spare=1.4, recomputes=False, call=step)
    assert "Earlier forwards wait for their backwards" in refusals[0]


def test_forwards_without_backwards() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            seen.append(module(x).detach().clone())
            module(x)
            kept = module(x)
            del kept
            loss = module(x)
            loss.backward()
            seen += [loss, gradients(module)]
            module.zero_grad()
        return _copied(seen)

    same(deep, scenario)


def test_exceptions_and_going_on() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        x = batches(1)[0]
        for _ in range(2):
            with pytest.raises(RuntimeError):
                module(x[:, :5])
            loss = module(x)
            handle = module.first.weight.register_hook(lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                loss.backward()
            handle.remove()
            del loss
            module.zero_grad()
            loss = module(x)
            loss.backward()
            seen += [loss, gradients(module)]
            module.zero_grad()
        return _copied(seen)

    same(deep, scenario, call=lambda m: m(batches(1)[0]), spare=0.1)


def test_second_derivatives_are_refused() -> None:
    fitted = lowtide.fit(deep(), "150% of plain", work=WORK)
    x = batches(1)[0].requires_grad_()
    (g,) = torch.autograd.grad(fitted(x), x, create_graph=True)
    with pytest.raises(lowtide.BackwardError, match=r"second derivatives .* lowtide\.unfit\(model\)"):
        g.square().sum().backward()
    gc.collect()
    assert (
        not shim.available() or shim.load().levels() == 0
    )  # the step's window has ended, though what autograd recorded is a cycle


def test_a_second_backward_without_retaining_is_refused_as_plainly() -> None:
    fitted = lowtide.fit(deep(), "150% of plain", work=WORK)
    loss = fitted(batches(1)[0])
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
