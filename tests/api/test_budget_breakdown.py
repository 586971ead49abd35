"""The parts of a budget add up to it, wherever they are shown."""

from __future__ import annotations

import torch
from torch import nn

import lowtide
from lowtide.ir.budget import BudgetBreakdown
from lowtide.report.explain import explain, render
from lowtide.report.html import html_of


def test_the_rows_add_up_to_what_was_asked() -> None:
    parts = BudgetBreakdown(1000, persistent_B=300, optimizer_B=100, planned_B=450)
    assert dict(parts.rows()) == {
        "parameters, buffers, inputs": 300,
        "optimizer state": 100,
        "planned": 450,
        "free": 150,
    }
    assert sum(size_B for _, size_B in parts.rows()) == 1000


def test_the_same_rows_are_printed_by_explain_the_page_and_memory_stats() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    fitted = lowtide.fit(model, "1MiB", optimizer=optimizer, work=50)
    for _ in range(2):
        fitted(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    record = fitted.lowtide.plan.record
    parts = record.breakdown
    assert sum(size_B for _, size_B in parts.rows()) == parts.asked_B == record.budget_B == 2**20
    assert parts.asked_B - parts.free_B == record.reserved_B
    assert parts.optimizer_B >= 2 * sum(p.nbytes for p in model.parameters())
    assert lowtide.memory_stats(fitted).breakdown == parts
    shown = " ".join(render(explain(record), verbose=True).split())
    assert str(parts) in shown
    assert str(parts) in html_of(record)
