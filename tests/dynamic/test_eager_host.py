"""Results that wait in host memory instead of being made again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import eager_shim

pytestmark = pytest.mark.skipif(bool(eager_shim.refusal()), reason="no compiled runtime here")


def train(budget: str | int, **options: str) -> tuple[list[torch.Tensor], lowtide.EagerStats]:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with lowtide.eager(budget, model=model, optimizer=optimizer, policy="tide", **options) as run:  # type: ignore[arg-type]
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(512, 128)).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], run.stats()


def test_what_returns_sooner_from_the_host_waits_there() -> None:
    expected, free = train("1GiB")
    budget_B = int(free.peak_B * 0.7)
    found, near = train(budget_B, host_budget="64MiB", link="100GB/s")
    assert near.fetches > 0
    assert near.reruns == 0
    assert near.peak_B <= budget_B
    again, far = train(budget_B, host_budget="64MiB", link="10MB/s")
    assert far.fetches == 0 < far.reruns
    for values in (found, again):
        assert all(torch.equal(a, b) for a, b in zip(expected, values, strict=True))
