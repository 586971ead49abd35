"""numpy inside a model: the same numbers, and the same generator, as without lowtide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowtide


class Calls(nn.Module):
    """A layer, then what a function makes of its output."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x)).sum()


def _scaled_by_root(h: Tensor) -> Tensor:
    return h / np.sqrt(8)


def _weighted(h: Tensor) -> Tensor:
    weights = np.exp(np.linspace(0.1, 3, 8))
    return h * torch.from_numpy(weights / weights.sum())


def _of_its_own_values(h: Tensor) -> Tensor:
    return h * torch.from_numpy(np.exp(h.detach().numpy()))


def _a_mean_of_its_own_values(h: Tensor) -> Tensor:
    return h * torch.tensor(h.detach().numpy().mean())


def _to_a_power(h: Tensor) -> Tensor:
    return h * torch.from_numpy(np.abs(h.detach().numpy()) ** 1.7)


def _of_mixed_types(h: Tensor) -> Tensor:
    values = h.detach().numpy()
    return h * torch.from_numpy(np.where(values > 0, 1, 0.5)) * torch.from_numpy(np.clip(values, 0, np.float64(0.7)))


def _masked(h: Tensor) -> Tensor:
    spans = int(2 + np.random.rand(1).item() * 3)
    mask = np.zeros(tuple(h.shape), dtype=bool)
    for row in range(mask.shape[0]):
        mask[row, np.random.choice(np.arange(8), spans, replace=False)] = True
    return torch.where(torch.from_numpy(mask), 0.5, h)


def _trained(function: Callable[[Tensor], Tensor], budget: str | None) -> tuple[list[Any], nn.Module]:
    torch.manual_seed(0)
    np.random.seed(0)
    model = Calls(function)
    if budget:
        lowtide.fit(model, budget=budget)
    found: list[Any] = []
    for _ in range(3):
        loss = model(torch.randn(32, 8))
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    _, keys, *position = np.random.get_state()
    return [*found, torch.from_numpy(keys), torch.tensor(position), torch.get_rng_state()], model


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # Dynamo's, where numpy's numbers come in
@pytest.mark.parametrize(
    "function",
    [_scaled_by_root, _weighted, _of_its_own_values, _a_mean_of_its_own_values, _to_a_power, _of_mixed_types, _masked],
    ids=lambda f: f.__name__.strip("_"),
)
def test_numpy_computes_and_draws_as_without_lowtide(function: Callable[[Tensor], Tensor]) -> None:
    expected, _ = _trained(function, None)
    found, _ = _trained(function, "100% of plain")
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_root_of_a_constant_breaks_no_graph() -> None:
    _, model = _trained(_scaled_by_root, "100% of plain")
    assert not model.lowtide.plan.record.breaks
