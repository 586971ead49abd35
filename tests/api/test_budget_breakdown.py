"""The parts of a budget add up to it, wherever they are shown."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import library_workspaces
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


def test_what_libraries_keep_is_left_out_of_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the processor's libraries are said to keep what those of a GPU do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    kept_B = 96 * 1024
    monkeypatch.setattr(library_workspaces, "held_B", lambda _: kept_B)
    fitted = lowtide.fit(model, "1MiB", work=50)
    for _ in range(2):
        fitted(torch.randn(16, 64)).square().mean().backward()
    seen = lowtide.memory_stats(fitted)
    assert seen.breakdown is not None
    assert ("library workspaces", kept_B) in seen.breakdown.rows()
    assert sum(size_B for _, size_B in seen.breakdown.rows()) == 2**20
    assert seen.arena_B <= 2**20 - kept_B
    assert seen.in_use_B >= kept_B


@pytest.mark.parametrize(
    ("settings", "capability", "expected_B"),
    [
        ({}, (9, 0), 32 * 2**20),
        ({}, (8, 0), (2 * 4096 + 8 * 16) * 1024),
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, (9, 0), 32 * 2**20),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8", "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}, (9, 0), (128 + 1024) * 1024),
    ],
)
def test_workspaces_as_they_are_configured(
    settings: dict[str, str], capability: tuple[int, int], expected_B: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "CUBLASLT_WORKSPACE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert library_workspaces.configured_B(0) == expected_B
