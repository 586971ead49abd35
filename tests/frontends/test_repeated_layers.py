"""A captured network with a layer repeated is the deeper network as it would have been captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowtide.frontends.captured_graph import captured_graph
from lowtide.ir.block import block_named
from lowtide.ir.block_search import find_blocks
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph
from lowtide.ir.likeness import renumbered
from lowtide.ir.repetition import repeat
from tests import networks


class Residual(nn.Module):
    """Two convolutions with batch norm around an in-place ReLU, added to what comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(x + self.second_norm(self.second(h)))


class ResidualNet(nn.Module):
    """A stem, equal layers, a head, the loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(Residual(8) for _ in range(layers))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(h.mean((2, 3))), y)


def residual(layers: int) -> Graph:
    batch = {"x": torch.zeros(2, 3, 8, 8), "y": torch.zeros(2, dtype=torch.int64)}
    return captured_graph(ResidualNet(layers).train(), kwargs=batch, machine="a100")


def gpt2(layers: int) -> Graph:
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    model = networks.gpt2(layers).train()
    return captured_graph(model, kwargs={"input_ids": tokens, "labels": tokens}, machine="a100")


@pytest.mark.parametrize(("capture", "name"), [(residual, "layers"), (gpt2, "transformer.h")])
def test_repeating_equals_capturing(capture: Callable[[int], Graph], name: str) -> None:
    shallow, wanted = capture(3), capture(7)
    block = block_named(shallow, find_blocks(shallow), name)
    assert block.times == 3
    deep = repeat(shallow, block, 7)
    check_graph(deep)
    assert renumbered(deep) == renumbered(wanted)
    assert {v.name for v in deep.values if v.persistent} == {v.name for v in wanted.values if v.persistent}
    assert [r.origin.module for r in deep.recipes] == [r.origin.module for r in wanted.recipes]
    random = [r.state for r in deep.recipes if r.effect is Effect.RANDOM]
    assert len(set(random)) == len(random)
