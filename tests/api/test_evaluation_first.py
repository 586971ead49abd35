"""An evaluation that comes before the first training step, as trainers make it to see that validation works."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.errors import InfeasibleBudget


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))


def test_a_share_of_plain_is_one_of_the_training_step() -> None:
    model, x = _net(), torch.randn(128, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    lowtide.fit(model, budget="80% of plain", optimizer=optimizer)
    with torch.no_grad():
        model(x)
    evaluation_B = lowtide.memory_stats(model).budget_B
    model(x).sum().backward()
    optimizer.step()
    stats, plan = lowtide.memory_stats(model), model.lowtide.plan
    assert plan.budget_B == stats.budget_B > evaluation_B
    assert plan.budget_B < plan.record.keep_all_peak_B + plan.record.reserve_B
    assert stats.reserved_B <= stats.budget_B


def test_what_cannot_train_is_held_to_its_share() -> None:
    model, x = _net().requires_grad_(False), torch.randn(128, 64)
    lowtide.fit(model, budget="50% of plain")
    with pytest.raises(InfeasibleBudget):
        model(x)


def test_a_plan_of_an_evaluation_is_one_of_an_evaluation() -> None:
    model, x = _net().eval(), torch.randn(128, 64)
    with pytest.raises(InfeasibleBudget), torch.no_grad():
        lowtide.plan(model, args=(x,), budget="50% of plain")
