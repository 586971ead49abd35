"""Operators that are not torch's own, control flow, subclasses, and the user's own checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.semantics.pairs import Wide, same, steps


class Cubed(torch.autograd.Function):
    """A gradient of its own, not the derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * x.abs() * ctx.scale, None


class Reversed(torch.autograd.Function):
    """Gradient reversal, in the style with a context apart."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(_: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


@torch.library.custom_op("lowtide_tests::noisy_scale", mutates_args=())
def noisy_scale(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Something that torch cannot look into, and that draws random numbers."""
    noise = torch.rand_like(x)
    return x * factor + noise, noise


@noisy_scale.register_fake
def _(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    return torch.empty_like(x), torch.empty_like(x)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]
    ctx.save_for_backward(output[1])


def _noisy_backward(ctx: Any, g: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None]:
    (noise,) = ctx.saved_tensors
    return g * ctx.factor + noise * 0.01, None


noisy_scale.register_autograd(_noisy_backward, setup_context=_save)


@torch.library.custom_op("lowtide_tests::bump", mutates_args={"count"})
def bump(count: torch.Tensor, by: float) -> None:
    """Changes its argument."""
    count.add_(by)


class Own(nn.Module):
    """Functions and operators of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.register_buffer("count", torch.zeros(300))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = Cubed.apply(F.gelu(self.layer(h)), 0.7)
        h, _ = noisy_scale(Reversed.apply(torch.tanh(h)), 0.5)
        bump(self.count, 1.5)
        return torch.tanh(h) * self.count[0]


class Conditional(nn.Module):
    """torch.cond in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.one(h))
        h = torch.cond(h.sum() > 0, lambda x: F.gelu(self.two(x)), lambda x: torch.tanh(x) * 1.0, (h,))
        return torch.cond(h.sum() < -1e9, lambda x: x.sin(), lambda x: x.cos(), (h,))


class Checkpointed(nn.Module):
    """Blocks in torch's own checkpoint."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(2))
        self.use_reentrant = use_reentrant

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.use_reentrant)
        return h


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_functions_and_operators_of_ones_own() -> None:
    # What such an operator allocates inside is not known, and what it returns may lie where others were to lie.
    same(lambda: Wide(Own()), steps(), spare=3.0, recomputes=False, departs=("lowtide_tests.", "aten."))


def test_conditions_on_data() -> None:
    same(lambda: Wide(Conditional()), steps(), spare=0.3, recomputes=False, departs="higher_order.cond")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_of_ones_own(use_reentrant: bool) -> None:
    same(lambda: Wide(Checkpointed(use_reentrant)), steps(), spare=0.5, recomputes=False)


def test_a_traceable_subclass() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(TwoTensor(x, x * 0.5))

    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in (torch.ones(256, 8), torch.linspace(-1, 1, 2048).view(256, 8)):
            out = loss(module, x)
            out.backward()
            grads = [p.grad for p in module.parameters()]
            seen += [out.a.detach().clone(), out.b.detach().clone(), [type(g).__name__ for g in grads]]
            seen += [[g.a.clone() for g in grads], [g.b.clone() for g in grads]]
            module.zero_grad()
        return seen

    same(lambda: Wide(nn.Identity()), scenario, spare=0.5, recomputes=False)


class Tagged(torch.Tensor):
    """A subclass that changes nothing."""


def test_a_plain_subclass() -> None:
    same(lambda: Wide(nn.Identity()), steps(2, lambda m, x: m(x.as_subclass(Tagged))), spare=0.5, recomputes=False)


def test_a_subclass_of_parameters() -> None:
    class Named(nn.Parameter):
        pass

    def make() -> nn.Module:
        module = Wide(nn.Linear(32, 32))
        module.middle.weight = Named(module.middle.weight.detach())
        return module

    same(make, steps(2))


def test_sparse_gradients() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(64, 32, sparse=True)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return torch.tanh(h + self.table(torch.arange(256) % 64))

    same(lambda: Wide(Sparse()), steps(2), spare=0.5, recomputes=False)
