"""Code between forward and backward gets the bytes that it was seen to take as soon as a budget has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no compiler")


class Routed(nn.Module):
    """Returns a large output and a small loss of its own, so that the caller's part of the loss is underrated."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.layers(x)
        return h, h.square().mean()


def _step(model: nn.Module, x: torch.Tensor) -> None:
    out, aux = model(x)
    (F.mse_loss(torch.tanh(out * 2), x) * 3 + aux).backward()
    model.zero_grad()


@pytest.mark.filterwarnings("ignore:code outside lowtide's graphs:lowtide.BudgetWarning")
def test_a_larger_budget_gives_the_bytes_that_a_smaller_one_had_not() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Routed(), torch.randn(2048, 64)
    lowtide.fit(model, budget="1GiB", work=1_000)
    _step(model, x)
    keep_all_B = model.lowtide.plan.record.reserved_B
    model.lowtide.set_budget(keep_all_B)
    for _ in range(3):
        _step(model, x)
    assert lowtide.memory_stats(model).spills > 0, "there were no bytes to give"
    model.lowtide.set_budget(2 * keep_all_B)
    for _ in range(3):
        _step(model, x)
    before = lowtide.memory_stats(model).spills
    for _ in range(3):
        _step(model, x)
    assert lowtide.memory_stats(model).spills == before
    assert lowtide.misplaced_allocations(model) == ()
