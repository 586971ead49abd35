"""Gradients that a backward is given: until when their bytes are taken, on this torch and on others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.capture import extract
from lowtide.ir.graph import Role
from lowtide.ir.schedule import Drop


class Broken(nn.Module):
    """Two graphs, and results whose loss is the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.second(h))


@pytest.mark.parametrize("given_away", [False, True])
def test_a_plan_frees_them_when_autograd_lets_go(given_away: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "gradients_are_given_away", lambda: given_away)
    fitted = lowtide.fit(Broken(), "64MiB", work=200)
    fitted(torch.ones(64, 8)).square().sum().backward()
    graph, steps = fitted.lowtide.plan.record.graph, fitted.lowtide.plan.record.schedule.steps
    tangents = {v.id: v for v in graph.values if v.role is Role.TANGENT}
    assert len(tangents) == 2
    assert {s.value for s in steps if isinstance(s, Drop)} & tangents.keys() == (
        tangents.keys() if given_away else set()
    )
    for value in tangents.values():
        assert (value.leaves, value.held) == ((None, True) if given_away else (value.arrives, False))
