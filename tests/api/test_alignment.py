"""Plans at a GPU's alignment, on CPU: every address and size is a multiple of 512 B, and steps are plain PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.ir import layout
from lowtide.session.handle import Fitted

UNIT_B = 512


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(99, 99), nn.GELU())))


def take(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    losses = []
    for step in range(3):
        batch = torch.randn(257, 99, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *(p.detach().clone() for p in model.parameters())]


def test_a_step_at_512_B(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout._ALIGNMENTS_B, "cpu", UNIT_B)
    plain = network()
    expected = take(plain, torch.optim.Adam(plain.parameters(), lr=0.01))
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    lowtide.fit(model, budget="80% of plain", optimizer=optimizer)
    found = take(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    handle = model.lowtide
    assert isinstance(handle, Fitted)
    assert handle.plan is not None
    plan = handle.plan.record
    assert plan.layout is not None
    assert plan.layout.alignment_B == UNIT_B
    assert all(offset_B % UNIT_B == 0 for offset_B in plan.layout.offsets_B)
    hard_budget = handle.session.budget_scope.hard_budget
    assert hard_budget is not None
    assert all(b.offset_B % UNIT_B == 0 and b.reserved_B % UNIT_B == 0 for b in hard_budget.arena.blocks())
    seen = lowtide.memory_stats(model)
    assert (seen.planned_misses, seen.misplaced_allocations, seen.spills) == (0, 0, 0)
    assert seen.planned_hits > 0
    assert seen.reserved_B <= plan.budget_B
    lowtide.unfit(model)
