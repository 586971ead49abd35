"""A network whose scales fade while it trains: its gradients are right, or its forward says that they cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide
from lowtide.errors import FaintScale
from lowtide.ir.graph import Graph
from lowtide.ops.scale import capacity
from lowtide.profile.exactness import Exactness
from tests.ops.examples import Normed, normal
from tests.ops.forced import Forced
from tests.ops.test_contract import distance

WIDTH = 64
NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm": (lambda: nn.BatchNorm2d(WIDTH), (6, WIDTH, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), (9, WIDTH)),
    "group norm": (lambda: nn.GroupNorm(4, WIDTH), (6, WIDTH, 3)),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), (9, WIDTH)),
}


def from_output(graph: Graph) -> dict[int, int]:
    """The choice of every gradient that is made from an output."""
    found = (
        (g, k) for g, group in enumerate(graph.groups) for k, o in enumerate(group.options) if o.name == "from output"
    )
    return dict(found)


@pytest.mark.parametrize("name", NORMS)
def test_scales_that_fade_are_followed_as_far_as_there_is_room(name: str) -> None:
    make, shape = NORMS[name]
    torch.manual_seed(0)
    module = Normed(make())
    bench = Forced(module, normal(*shape)(torch.float32))
    choice = from_output(bench.graph)
    assert len(choice) == 1
    weight = bench.state["norm.weight"]
    for faint in (0, 1, capacity(WIDTH)):
        weight.copy_(torch.linspace(0.5, 2.0, WIDTH))
        weight[:faint] = torch.tensor([0.0, 1e-12, -1e-15, 1e-30])[:faint]
        made, truth = bench.run(choice), bench.run({})
        for ours, theirs in zip(made.gradients, truth.gradients, strict=True):
            assert ours is not None
            assert theirs is not None
            assert distance(ours, theirs) <= 1e-5 * float(theirs.norm())
    weight[: capacity(WIDTH) + 1] = 0.0
    with pytest.raises(FaintScale, match=f"{capacity(WIDTH) + 1} of a normalisation's {WIDTH} scales"):
        bench.run(choice)


@pytest.mark.parametrize("name", NORMS)
def test_scales_that_are_zero_from_the_start_are_left_alone(name: str) -> None:
    make, shape = NORMS[name]
    norm = make()
    scales = norm.get_parameter("weight")
    nn.init.zeros_(scales)
    plan = lowtide.plan(Bare(norm), normal(*shape)(torch.float32), budget="100% of plain", numerics="reassociated")
    assert not from_output(plan.record.graph)
    nn.init.ones_(scales)
    plan = lowtide.plan(Bare(norm), normal(*shape)(torch.float32), budget="100% of plain", numerics="reassociated")
    assert len(from_output(plan.record.graph)) == 1


class Bare(nn.Module):
    """A normalisation between two products."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x * 1.5) * 2.0
        return y


def test_gradients_over_what_they_are_made_from_pass_their_trial() -> None:
    """Scales to try them on are not faint."""
    torch._dynamo.reset()
    module = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU()).train()
    graph = Forced(module, (torch.randn(2, 64, 16, 16, requires_grad=True),)).graph
    assert "lowtide.batch_norm_backward_from_output_over" in {r.op for r in graph.recipes}
    assert [(r.name, r.reason) for r in Exactness(None).refuted(graph)] == []
