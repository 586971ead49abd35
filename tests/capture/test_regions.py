"""Marked regions: traced once by Dynamo, captured as the unmarked model is, trained as plain PyTorch trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.api.captured_graph import captured_graph
from lowtide.ir.block_search import program_blocks
from lowtide.ir.likeness import renumbered
from tests.networks import Residual, differences, train, twin


class Feedforward(nn.Module):
    """Norm, two linear layers, dropout, a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(F.gelu(self.first(self.norm(x))), 0.2, self.training)
        return x + F.dropout(self.second(h), 0.1, self.training)


class Stack(nn.Module):
    """A stem, equal layers, marked or not, and a loss."""

    def __init__(self, stem: nn.Module, layers: list[nn.Module], marked: bool) -> None:
        super().__init__()
        self.stem, self.layers, self.marked = stem, nn.ModuleList(layers), marked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.stem(x)
        for layer in self.layers:
            h = _marked(layer, h) if self.marked else layer(h)
        return h.square().mean()


@torch.compiler.nested_compile_region
def _marked(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return layer(x)


@torch.compiler.nested_compile_region
def _outer(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = _marked(layer, x)
    return h, h.tanh()


class Nested(Stack):
    """Regions inside of regions, with two results."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, total = self.stem(x), torch.zeros(())
        for layer in self.layers:
            h, squashed = _outer(layer, h) if self.marked else (_plain := layer(h), _plain.tanh())
            total = total + squashed.mean()
        return total


def convolutions(marked: bool, layers: int = 4, kind: type[Stack] = Stack) -> tuple[Stack, torch.Tensor]:
    torch.manual_seed(0)
    return kind(nn.Conv2d(3, 8, 1), [Residual(8) for _ in range(layers)], marked), torch.randn(2, 3, 8, 8)


def transformers(marked: bool, layers: int = 4, kind: type[Stack] = Stack) -> tuple[Stack, torch.Tensor]:
    torch.manual_seed(0)
    return kind(nn.Linear(6, 16), [Feedforward(16) for _ in range(layers)], marked), torch.randn(4, 5, 6)


MAKERS = [convolutions, transformers]
KINDS = [Stack, Nested]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", MAKERS)
def test_a_marked_model_is_captured_as_the_unmarked_one(
    make: Callable[..., tuple[Stack, torch.Tensor]], kind: type[Stack]
) -> None:
    graphs = []
    for marked in (True, False):
        model, x = make(marked, kind=kind)
        torch._dynamo.reset()
        graphs.append(captured_graph(model.train(), (x,), machine="a100"))
    assert renumbered(graphs[0]) == renumbered(graphs[1])
    assert [r.origin.module for r in graphs[0].recipes] == [r.origin.module for r in graphs[1].recipes]
    assert [b.name for b in program_blocks(graphs[0])] == [b.name for b in program_blocks(graphs[1])] == ["layers"]


@pytest.mark.parametrize("make", MAKERS)
def test_training_is_unchanged(make: Callable[..., tuple[Stack, torch.Tensor]]) -> None:
    model, x = make(True)
    batches = [x, x + 1]
    expected = train(twin(model), lambda m, b: m(b), batches)
    fitted = lowtide.fit(model, budget="100% of plain", work=1_000)
    assert differences(expected, train(fitted, lambda m, b: m(b), batches)) == []
