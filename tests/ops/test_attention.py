"""Attention in parts: bits, bytes, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph
from lowtide.ir.numerics import Numerics
from lowtide.ops.attention import Attention, pieces
from lowtide.planners.implementations.choice import choose
from lowtide.profile.measure import profile_graph
from lowtide.profile.roofline import assumed_trace
from tests.ops.examples import Call
from tests.ops.language import OpenAttention
from tests.ops.offers import difference, offered

FAMILY = Attention(least_B=0)
X = torch.randn(3, 20, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("batches", [1, 3, 8])
@pytest.mark.parametrize("heads", [1, 4, 12])
@pytest.mark.parametrize("parts", [1, 2, 8, 96])
def test_pieces_cover_all_heads_once_and_in_order(batches: int, heads: int, parts: int) -> None:
    found = [n for b, c, h, i in pieces(batches, heads, parts) for n in range(b * heads + h, (c - 1) * heads + i)]
    assert found == list(range(batches * heads))
    assert all(c - b == 1 or (h, i) == (0, heads) for b, c, h, i in pieces(batches, heads, parts))


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float64),
        ({"mask": "padding", "dropout": 0.3}, torch.float32),
        ({"mask": "causal", "wide": True}, torch.bfloat16),
        ({"mask": "causal", "sdpa": True, "dropout": 0.5}, torch.float32),
    ],
)
def test_every_option_has_the_programs_bits(options: dict[str, Any], dtype: torch.dtype) -> None:
    graph = offered(OpenAttention(**options).to(dtype), (X.to(dtype).clone().requires_grad_(),), FAMILY)
    (group,) = graph.groups
    for k, option in enumerate(group.options[1:], 1):
        check_graph(choose(graph, {0: k}))
        if option.numerics is Numerics.EXACT:
            assert difference(graph, group, option) == ""
        shapes = [graph.values[v].geometry for r in option.recipes for v in graph.recipes[r].outputs]
        whole = [g for g in shapes if g is not None and g.shape[-2:] == (20, 20)]
        assert {g.dtype for g in whole} <= {"bool"}, "scores exist whole"


@pytest.mark.parametrize(("dropout", "offers"), [(0.0, True), (0.2, False)])
def test_flash_stands_in_where_nothing_is_drawn(dropout: float, offers: bool) -> None:
    graph = offered(OpenAttention(dropout=dropout), (X.clone().requires_grad_(),), FAMILY)
    assert any(o.name == "flash" for o in graph.groups[0].options) is offers


def test_a_forward_alone_runs_in_parts() -> None:
    model = OpenAttention(mask="causal").requires_grad_(False)
    graph = offered(model, (X,), FAMILY)
    (group,) = graph.groups
    assert [graph.recipes[r].op for r in group.options[1].recipes] == ["lowtide.attention"]
    assert difference(graph, group, group.options[1]) == ""


def test_dropout_draws_once_and_draws_again_the_same() -> None:
    graph = offered(OpenAttention(dropout=0.2), (X,), FAMILY)
    masks = [r for r in graph.recipes if r.op == "lowtide.dropout_mask"]
    assert sorted(r.effect.value for r in masks) == [Effect.PURE.value, Effect.RANDOM.value]
    assert len({r.state for r in masks}) == 1


class Watched(nn.Module):
    """Attention that returns its weights, too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = F.softmax(x @ x.transpose(1, 2), -1)
        return weights @ x, weights


@pytest.mark.parametrize(
    "model",
    [Watched(), Call(lambda x: F.softmax(x @ x.transpose(1, 2), 1) @ x), Call(lambda x: F.softmax(x * 2.0, -1))],
    ids=["weights returned", "another dimension", "no product"],
)
def test_other_softmaxes_are_left_alone(model: nn.Module) -> None:
    assert offered(model, (X.clone().requires_grad_(),), FAMILY).groups == ()


def test_a_bias_that_is_trained_is_left_alone() -> None:
    bias = nn.Parameter(torch.zeros(20, 20))

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(x @ x.transpose(1, 2) + self.bias, -1) @ x

    assert offered(Biased(), (X.clone().requires_grad_(),), FAMILY).groups == ()


def test_what_kernels_allocate_is_what_they_declare() -> None:
    x = torch.randn(4, 96, 16)
    graph: Graph = offered(OpenAttention(mask="causal", dropout=0.1), (x,), FAMILY)
    measured = profile_graph(graph).graph
    seen = [r for r in measured.recipes if r.op in ("lowtide.attention", "lowtide.attention_backward")]
    assert len(seen) == 2
    for recipe in seen:
        declared = assumed_trace(graph, graph.recipes[recipe.id])
        assert recipe.trace.measured
        assert recipe.trace.peak_B <= 1.1 * declared.peak_B + 16_384, recipe.op
