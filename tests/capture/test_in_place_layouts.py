"""What is written in place into a slice with gaps is read from there with its gaps, as in eager.

A row of 13 numbers is no whole number of vectors, and a sigmoid's last elements round otherwise than its others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide

WIDTH = 13


def _separate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.unsafe_chunk(3, 1)[0].add_(b).sigmoid_()


def _read_later(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    first, second, _ = torch.unsafe_split(a, WIDTH, 1)
    return first.add_(b).sigmoid() + second.tanh_()


def _after_a_break(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    part = a[:, :WIDTH]
    torch._dynamo.graph_break()
    return part.mul_(b).sigmoid()


def _out(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    part = torch.zeros(b.shape[0], 3 * WIDTH)[:, :WIDTH]
    torch._dynamo.graph_break()
    torch.add(a[:, :WIDTH].detach(), b.detach(), out=part)
    return part.sigmoid_() * b


def _several_at_once(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    parts = [a.detach()[:, :WIDTH], a.detach()[:, WIDTH : 2 * WIDTH]]
    torch._dynamo.graph_break()
    torch._foreach_add_(parts, [b.detach(), b.detach()])
    return (parts[0].sigmoid() + parts[1].sigmoid()) * b


def _a_slice_of_a_slice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    part = a[:, :-1]
    torch._dynamo.graph_break()
    part[:, :WIDTH].add_(b)
    return part.sigmoid()


def _taken_inside(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.view(-1, 3, WIDTH)[:, 1].add_(b).sigmoid_()


def _turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    square = a[:WIDTH, :WIDTH] * b[:WIDTH]
    square.transpose_(0, 1)
    square.mul_(2.0)
    return square.sum(1) * square.sigmoid()


class Overwrites(nn.Module):
    """Two layers whose results a function combines in place."""

    def __init__(self, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.wide, self.narrow, self.combine = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), combine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.combine(self.wide(x) * 3, self.narrow(x)).sum()


def _trained(model: nn.Module, rows: list[int]) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = []
    for step, n in enumerate(rows):
        x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(step)).requires_grad_()
        loss = model(x)
        loss.backward()
        found += [loss.detach(), x.grad, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
    return found


COMBINATIONS = [
    _separate,
    _read_later,
    _after_a_break,
    _out,
    _several_at_once,
    _a_slice_of_a_slice,
    _taken_inside,
    _turned,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("combine", COMBINATIONS, ids=lambda f: f.__name__.strip("_"))
def test_gaps_are_kept(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Overwrites(combine)
    fitted = lowtide.fit(copy.deepcopy(plain), "1MiB", work=50, dynamic=dynamic)
    rows = [37, 21] if dynamic else [37, 37]
    for expected, found in zip(_trained(plain, rows), _trained(fitted, rows), strict=True):
        assert (expected is None) == (found is None)
        assert expected is None or found is None or torch.equal(expected, found)
