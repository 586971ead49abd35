"""Everything that draws random numbers draws the same ones, once per step, also where it is recomputed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests import torchvision_shim
from tests.semantics.pairs import Wide, same, steps, unlike


class Dropouts(nn.Module):
    """Every dropout there is, as modules, functions and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.inplace = nn.Dropout(0.3), nn.Dropout(0.15, inplace=True)
        self.one, self.two, self.three = nn.Dropout1d(0.3), nn.Dropout2d(0.3), nn.Dropout3d(0.3)
        self.alpha, self.features = nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        rows, width = h.shape
        h = self.inplace(self.plain(h) * 1.1)
        h = torch.tanh(self.one(h.view(rows, 8, 4)))
        h = torch.tanh(self.two(h.view(rows, 8, 2, 2)))
        h = torch.tanh(self.three(h.view(rows, 8, 2, 2, 1)))
        h = self.features(self.alpha(h.view(rows, 8, 4)))
        h = F.alpha_dropout(F.dropout1d(h, 0.1), 0.1)
        h = F.feature_dropout(F.feature_alpha_dropout(h, 0.1), 0.1) if hasattr(F, "feature_dropout") else h
        return torch.dropout(F.dropout(h.reshape(rows, width), 0.0), 0.5, True)


class Attention(nn.Module):
    """Scaled dot product attention with dropout, plainly and in torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(32, 2, dropout=0.15, batch_first=True)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        q = h.view(8, 32, 2, 16).transpose(1, 2)
        h = (
            F.scaled_dot_product_attention(q, q * 1.1, q, dropout_p=0.15, is_causal=True)
            .transpose(1, 2)
            .reshape(8, 32, 32)
        )
        return (h + self.layer(h, h, h, need_weights=False)[0]).view(256, 32)


class Noise(nn.Module):
    """Draws of many kinds; some are differentiable, some choose, some are made in place."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = F.rrelu(h, training=self.training) + torch.randn_like(h) * 0.1
        h = h * torch.bernoulli(torch.sigmoid(h).detach())
        h = h + F.gumbel_softmax(h, tau=0.7, hard=True)
        chosen = torch.multinomial(h.softmax(-1), 4, replacement=True)
        h = h + h.gather(1, chosen).sum(1, keepdim=True)
        h = torch.tanh(h * torch.empty_like(h).uniform_(0.5, 1.5) + torch.empty_like(h).normal_())
        h = h * torch.rand(h.shape) + torch.randint(0, 3, h.shape)
        h = h[torch.randperm(h.shape[0])] + torch.poisson(h.detach().abs())
        return torch.tanh(h + torch.empty_like(h).exponential_(2.0) + torch.normal(0.0, 1.0, h.shape))


class Paths(nn.Module):
    """timm's stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        torchvision_shim.install()
        from timm.layers import DropPath

        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.paths = nn.ModuleList(DropPath(0.3, scale_by_keep=i != 1) for i in range(3))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer, path in zip(self.layers, self.paths, strict=True):
            h = h + path(F.gelu(layer(h)))
        return h


class OwnGenerator(nn.Module):
    """A generator of the model's own, and Python's."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        g = torch.Generator().manual_seed(5)
        return h * torch.rand(h.shape, generator=g) * (1 + random.random())


def test_dropout_of_every_kind() -> None:
    same(lambda: Wide(Dropouts()), steps())


def _steps_and_an_evaluation(module: nn.Module) -> list[object]:
    """A loop, then a call without gradients in training mode, and where the generator stands after it."""
    seen = steps()(module)
    module.zero_grad()
    with torch.no_grad():
        return [*seen, module(torch.ones(256, 8)), torch.get_rng_state()]


@pytest.mark.parametrize("p", [0.04, 0.15, 0.71])
def test_weights_that_a_division_and_a_product_round_apart(p: float) -> None:
    """`1 / (1 - p)` in float32 is not that of 64 bits, rounded: for every fifth p, and not for 0.1, 0.2 or 0.5."""

    same(lambda: Wide(nn.Dropout(p)), _steps_and_an_evaluation)


DRAWS: dict[str, Callable[[torch.Tensor], object]] = {
    "dropout": lambda h: F.dropout(F.dropout(h, 0.3).relu(), 0.2) + 1,
    "attention": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.3),
    "of a module's own": lambda h: torch.randn(3) * h.sum(),
    "in place": lambda _: torch.empty(5).uniform_(),
    "of whole numbers": lambda _: (torch.randperm(5), torch.randint(0, 5, (3,))),
    "by probabilities": lambda h: (torch.bernoulli(h.sigmoid().detach()), torch.multinomial(h.softmax(-1), 2)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_that_nothing_uses_move_the_generator(draw: Callable[[torch.Tensor], object]) -> None:
    def middle(h: torch.Tensor) -> torch.Tensor:
        draw(h)
        return F.dropout(h, 0.5)

    same(lambda: Wide(middle), _steps_and_an_evaluation)


def test_what_drops_everything_draws_nothing() -> None:
    def middle(h: torch.Tensor) -> torch.Tensor:
        for dropout in (F.dropout, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout):
            h = h + dropout(h.relu(), 1.0, training=True)
        return h + F.dropout(h, 0.5)

    same(lambda: Wide(middle), _steps_and_an_evaluation)


@pytest.mark.parametrize(("p", "dtype"), [(0.15, torch.float32), (1.0, torch.float32), (0.15, torch.bfloat16)])
def test_dropout_that_a_graph_begins_and_ends_with(p: float, dtype: torch.dtype) -> None:
    def trained(budget: str | None) -> list[object]:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Dropout(p), nn.Linear(8, 8), nn.Dropout(p)).to(dtype)
        if budget:
            model = lowtide.fit(model, budget=budget)
        x = torch.randn(32, 8, dtype=dtype, requires_grad=True)
        out = model(x)
        out.square().mean().backward()
        with torch.no_grad():
            again = model(x)
        return [out.detach(), again, x.grad, *(q.grad for q in model.parameters()), torch.get_rng_state()]

    assert unlike(trained(None), trained("1MiB")) == []


def test_attention_dropout() -> None:
    same(lambda: Wide(Attention()), steps())


def test_noise() -> None:
    same(lambda: Wide(Noise()), steps())


def test_stochastic_depth() -> None:
    same(lambda: Wide(Paths()), steps())


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_generators_of_ones_own() -> None:
    def scenario(module: nn.Module) -> list[object]:
        random.seed(4)
        return [*steps()(module), random.random()]

    same(lambda: Wide(OwnGenerator()), scenario, spare=1.0, recomputes=False)


def test_recurrent_dropout() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(32, 32, 2, dropout=0.3)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return self.lstm(h.view(8, 32, 32))[0].reshape(256, 32)

    same(lambda: Wide(Recurrent()), steps())
