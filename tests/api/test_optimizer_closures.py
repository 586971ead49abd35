"""Forward and backward inside the optimizer's step, as Lightning has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.session.optimizer_hooks import STEPPING


def _phases_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the stretches of the caller's code that rest inside the arena, as they begin."""
    from lowtide.runtime.hard_budget import HardBudget

    seen: list[str] = []
    original = HardBudget.rest

    def rest(self: HardBudget, name: str) -> None:
        original(self, name)
        seen.append(name)

    monkeypatch.setattr(HardBudget, "rest", rest)
    return seen


@pytest.mark.parametrize("by_name", [False, True])
def test_the_step_after_a_closure_allocates_inside(monkeypatch: pytest.MonkeyPatch, by_name: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
    fitted = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
    fitted.load_state_dict(plain.state_dict())
    inputs = [torch.randn(1024, 64) for _ in range(3)]

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = []
        for x in inputs:

            def closure(x: torch.Tensor = x) -> float:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss.item()

            losses.append(optimizer.step(closure=closure) if by_name else optimizer.step(closure))
        return losses

    wanted = train(plain, torch.optim.AdamW(plain.parameters()))
    optimizer = torch.optim.AdamW(fitted.parameters())
    lowtide.fit(fitted, budget="110% of plain", optimizer=optimizer)
    rests = _phases_of(monkeypatch)
    assert train(fitted, optimizer) == wanted
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), fitted.parameters(), strict=True))
    # before and after every closure; the arena is made inside the first one
    assert rests == [STEPPING] * 5
    stats = lowtide.memory_stats(fitted)
    assert stats.spills == stats.misplaced_allocations == 0
    assert stats.reserved_B <= stats.budget_B


def test_a_closure_that_raises_leaves_nothing_at_rest() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lowtide.fit(model, budget="110% of plain", optimizer=optimizer)
    model(torch.randn(1024, 64)).sum().backward()

    def closure() -> float:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        optimizer.step(closure)
    before_B = lowtide.memory_stats(model).in_use_B
    kept = torch.empty(4096)
    assert lowtide.memory_stats(model).in_use_B == before_B
    del kept
