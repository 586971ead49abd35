"""Memory that torch did not allocate: others write there unseen, and release it when they like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
_ROWS = 256


def _gradients(keep: bool) -> list[torch.Tensor]:
    """Observations come in one buffer that is written over again and again before anything is learnt from them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 1))
    buffer = np.zeros((_ROWS, 64), dtype=np.float32)
    losses = []
    for turn in range(4):
        buffer[:] = np.random.default_rng(turn).standard_normal(buffer.shape)
        seen = torch.from_numpy(buffer) * 1.0 if keep else torch.from_numpy(buffer.copy()) * 1.0
        losses.append(model(seen).square().mean())
    sum(losses).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("keep", [True, False], ids=["written over", "released"])
def test_memory_of_others(keep: bool) -> None:
    expected = _gradients(keep)
    with lowtide.eager("64MiB", policy="lru") as free:
        _gradients(keep)
    budget_B = int(free.stats().peak_B * 0.85)
    with lowtide.eager(budget_B, policy="lru") as run:
        found = _gradients(keep)
    stats = run.stats()
    assert stats.evictions > 0
    assert stats.peak_B <= budget_B
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
