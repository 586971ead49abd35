"""What a plan says of how its budget on a GPU is kept, where there is no GPU: the levels alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from lowtide.device import cuda
from lowtide.errors import BudgetError
from lowtide.results.plan import Plan
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


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """What torch's allocator may reserve of each GPU, where there is none."""
    found = {0: 0.9}

    def fraction(share: float, device: int) -> None:
        found[device] = share

    monkeypatch.setattr(cuda, "_installed", None)
    monkeypatch.setattr(cuda, "_capped", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=64 * MiB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fraction)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: found[device])
    return found


CAPPED = replace(record(), budget_B=16 * MiB, budget_kind="capped")


def test_a_capped_plan_caps_the_allocator_until_its_model_is_unfitted(shares: dict[int, float]) -> None:
    scope = BudgetScope("step")
    scope.limit(replace(CAPPED, budget_kind="accounted"))
    assert shares == {0: 0.9}
    scope.limit(CAPPED)
    scope.limit(replace(CAPPED, budget_B=32 * MiB))
    assert shares == {0: 0.5}
    assert cuda.level() == "capped"
    scope.dismiss()
    assert shares == {0: 0.9}
    assert cuda.level() == "accounted"


def test_the_limit_of_one_gpu_belongs_to_one_model(shares: dict[int, float]) -> None:
    first, second = BudgetScope("step"), BudgetScope("step")
    first.limit(CAPPED)
    with pytest.raises(BudgetError, match=r"limited to 16\.0 MiB for another fitted model"):
        second.limit(CAPPED)
    second.dismiss()
    assert shares == {0: 0.25}
    first.dismiss()
    second.limit(CAPPED)


def test_capped_names_what_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_installed", None)
    found = BudgetScope("step").said(replace(record(), budget_B=8 * MiB), "cuda")
    assert cuda.NOT_HELD in found.covers.outside
    assert cuda.NOT_HELD in " ".join(Plan(found).explain(verbose=True).split())
