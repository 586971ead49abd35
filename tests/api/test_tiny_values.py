"""Values too small to be planned have a zone of their own, those too that only some implementations save."""

from __future__ import annotations

import torch
from torch import nn

import lowtide
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.sequence import blocks_of, small_peak_B
from lowtide.planners.implementations.choice import choose


class Residuals(nn.Module):
    """Many small activations of which bits are enough."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(40):
            x = x + 0.1 * (x - 0.1).relu()
        return x.square().mean()


def test_the_zone_of_tiny_values_holds_bits_instead_of_activations() -> None:
    fitted = lowtide.fit(Residuals(), budget="1GiB", work=2_000)
    fitted(torch.ones(32, 32)).backward()
    graph = fitted.lowtide.plan.record.graph
    free_B = fitted.lowtide.session.budget_scope.reserve.small_B
    plain_B = small_peak_B(blocks_of(graph, keep_all_schedule(graph), small_B=0))
    tiny_B = []
    for option in range(max(len(g.options) for g in graph.groups)):
        chosen = choose(graph, {i: min(option, len(g.options) - 1) for i, g in enumerate(graph.groups)})
        tiny_B.append(small_peak_B(blocks_of(chosen, keep_all_schedule(chosen), small_B=0)))
    assert plain_B + 1024 < max(tiny_B) <= free_B, "more than the slack"


class Normed(nn.Module):
    """Norms over few rows, the statistics of which are tiny, between layers that take far more."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return x.square().mean()


def test_a_plan_leaves_free_what_does_not_fit_in_a_zone_made_for_another_graph() -> None:
    fitted = lowtide.fit(Normed(), budget="8MiB", work=200)
    with torch.no_grad():
        fitted(torch.ones(100, 64))
    reserve = fitted.lowtide.session.budget_scope.reserve
    zone_B = reserve.small_B
    fitted(torch.ones(100, 64)).backward()
    record = fitted.lowtide.plan.record
    tiny_B = small_peak_B(blocks_of(record.graph, record.schedule, small_B=0))
    assert reserve.small_B == zone_B < tiny_B <= record.reserve_B
