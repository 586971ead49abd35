"""What a plan says of how its budget on a GPU is kept, where there is no GPU: the levels alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from lowtide.device import cuda
from lowtide.session.budget_scope import BudgetScope, Scope
from tests.report.plan_records import record

MiB = 2**20


def arena_of(capacity_B: int) -> Any:
    """As much of the module as the level asks."""
    return SimpleNamespace(slab=lambda _: SimpleNamespace(stats=lambda: {"capacity_B": capacity_B}))


def said(scope: Scope, device: str, budget_B: int) -> str:
    return BudgetScope(scope).said(replace(record(), budget_B=budget_B), device).budget_kind


def test_without_the_arena_a_budget_on_a_gpu_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_installed", None)
    assert said("step", "cuda", 8 * MiB) == "capped"
    assert said("none", "cuda", 8 * MiB) == "accounted"
    assert said("step", "cpu", 8 * MiB) == "accounted"


def test_the_arena_enforces_budgets_no_smaller_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_installed", arena_of(8 * MiB))
    assert said("step", "cuda", 8 * MiB) == "enforced"
    assert said("process", "cuda", 9 * MiB) == "enforced"
    assert said("step", "cuda", 8 * MiB - 1) == "accounted"


def test_a_capped_plan_caps_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    def properties(_: int) -> Any:
        return SimpleNamespace(total_memory=64 * MiB)

    def fraction(share: float, device: int) -> None:
        asked.append((share, device))

    monkeypatch.setattr(cuda, "_installed", None)
    monkeypatch.setattr(cuda, "_capped", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fraction)
    plan = replace(record(), budget_B=16 * MiB)
    BudgetScope("step").limit(plan)
    assert asked == []
    BudgetScope("step").limit(replace(plan, budget_kind="capped"))
    assert asked == [(0.25, 0)]
    assert cuda.level() == "capped"
