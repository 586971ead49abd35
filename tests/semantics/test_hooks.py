"""Hooks of every kind are called as plainly, with the same tensors, whenever they were registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.semantics.pairs import Wide, batches, gradients, same


class Middle(nn.Module):
    """Two layers that hooks are put on."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.two(F.gelu(self.one(h))))


class Hooked(nn.Module):
    """Puts a hook on one of its own activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.seen: list[float] = []

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.layer(h))
        if h.requires_grad:
            h.register_hook(lambda g: g * 0.5)
        return torch.tanh(h)


Register = Callable[[nn.Module, list[Any]], Any]


def _forward(module: nn.Module, _: list[Any]) -> Any:
    return module.middle.one.register_forward_hook(lambda _m, _args, out: out * 1.1)


def _forward_pre(module: nn.Module, _: list[Any]) -> Any:
    return module.middle.two.register_forward_pre_hook(lambda _m, args: (args[0] * 0.9,))


def _with_kwargs(module: nn.Module, _: list[Any]) -> Any:
    return module.register_forward_pre_hook(lambda _m, args, kwargs: ((args[0] * 0.9,), kwargs), with_kwargs=True)


def _of_the_model(module: nn.Module, _: list[Any]) -> Any:
    return module.register_forward_hook(lambda _m, _args, out: out * 2)


def _keeps(module: nn.Module, seen: list[Any]) -> Any:
    return module.middle.one.register_forward_hook(lambda _m, _args, out: seen.append(out.detach().clone()))


def _full_backward(module: nn.Module, seen: list[Any]) -> Any:
    def hook(_: nn.Module, grad_in: Any, grad_out: Any) -> Any:
        seen.append(grad_out[0].clone())
        return (grad_in[0] * 0.5,)

    return module.middle.one.register_full_backward_hook(hook)


def _full_backward_pre(module: nn.Module, _: list[Any]) -> Any:
    return module.middle.two.register_full_backward_pre_hook(lambda _m, grad_out: (grad_out[0] * 0.5,))


def _backward_of_the_model(module: nn.Module, seen: list[Any]) -> Any:
    return module.register_full_backward_hook(lambda _m, _grad_in, grad_out: seen.append(grad_out[0].clone()))


def _tensor(module: nn.Module, _: list[Any]) -> Any:
    return module.first.weight.register_hook(lambda g: g * 2)


def _accumulated(module: nn.Module, seen: list[Any]) -> Any:
    return module.last.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))


pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed")
EVERY = (
    _forward, _forward_pre, _with_kwargs, _of_the_model, _keeps, _full_backward, _full_backward_pre,
    _backward_of_the_model, _tensor, _accumulated,
)  # fmt: skip


def _step(module: nn.Module, x: torch.Tensor) -> list[Any]:
    loss = module(x)
    loss.backward()
    found = [loss.detach().clone(), gradients(module)]
    module.zero_grad()
    return found


@pytest.mark.parametrize("register", EVERY, ids=lambda r: r.__name__.strip("_"))
def test_a_hook_from_the_beginning(register: Register) -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        handle = register(module, seen)
        try:
            return [seen, *(_step(module, x) for x in batches(2))]
        finally:
            handle.remove()

    same(lambda: Wide(Middle()), scenario, spare=0.3, recomputes=False)


@pytest.mark.parametrize("register", EVERY, ids=lambda r: r.__name__.strip("_"))
def test_a_hook_after_the_first_call(register: Register) -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        found = [_step(module, batches(1)[0])]
        handle = register(module, seen)
        found += [_step(module, x) for x in batches(2)]
        handle.remove()
        return [seen, *found, _step(module, batches(1)[0])]

    same(lambda: Wide(Middle()), scenario, spare=3.0, recomputes=False)


def test_a_hook_of_the_forward_itself() -> None:
    same(lambda: Wide(Hooked()), lambda m: [_step(m, x) for x in batches(2)], spare=0.3, recomputes=False)


def test_an_optimizer_inside_the_backward() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in module.parameters()}

        def step(p: torch.Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        handles = [p.register_post_accumulate_grad_hook(step) for p in module.parameters()]
        losses = []
        for x in batches(3):
            loss = module(x)
            loss.backward()
            losses.append(loss.detach().clone())
        for handle in handles:
            handle.remove()
        return losses

    same(lambda: Wide(Middle()), scenario, spare=0.3)


def test_hooks_of_all_modules() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        found = [_step(module, batches(1)[0])]
        seen: list[str] = []
        handle = nn.modules.module.register_module_forward_hook(lambda m, _args, _out: seen.append(type(m).__name__))
        try:
            found.append(_step(module, batches(1)[0]))
        finally:
            handle.remove()
        return [found, seen, _step(module, batches(1)[0])]

    same(lambda: Wide(Middle()), scenario, spare=0.3, recomputes=False)
