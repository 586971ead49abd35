"""Values too small to be planned have room of their own, those too that only some implementations save."""

from __future__ import annotations

import torch
from torch import nn

import lowtide
from lowtide.ir.sequence import blocks_of, small_peak_B
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.reductions.choice import choose


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


def test_the_room_for_tiny_values_holds_bits_instead_of_activations() -> None:
    fitted = lowtide.fit(Residuals(), budget="1GiB", work=2_000)
    fitted(torch.ones(32, 32)).backward()
    graph = fitted.lowtide.plan.record.graph
    room_B = fitted.lowtide.session.enclosure.allowance.small_B
    plain_B = small_peak_B(blocks_of(graph, keep_all_schedule(graph), small_B=0))
    tiny_B = []
    for option in range(max(len(g.options) for g in graph.groups)):
        chosen = choose(graph, {i: min(option, len(g.options) - 1) for i, g in enumerate(graph.groups)})
        tiny_B.append(small_peak_B(blocks_of(chosen, keep_all_schedule(chosen), small_B=0)))
    assert plain_B + 1024 < max(tiny_B) <= room_B, "more than the slack"
