"""Captures where torch's fake kernels are wrong about strides, and where gradients lie otherwise than outputs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lowtide


class Transposed(nn.Module):
    """A layer over a transposed input, between two linear ones; the second reads a view."""

    def __init__(self, layer: nn.Module, *, views: bool = False) -> None:
        super().__init__()
        self.first, self.layer, self.last, self.views = nn.Linear(16, 16), layer, nn.Linear(16, 4), views

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(self.first(x).transpose(1, 2))
        if self.views:  # eager's result is contiguous
            return self.last(y.view(-1, 16)).square().mean()
        return self.last(y.transpose(1, 2)).square().mean()


@pytest.mark.parametrize(
    ("layer", "views"),
    [
        (lambda: nn.BatchNorm1d(16), False),
        (lambda: nn.BatchNorm1d(16), True),
        (lambda: nn.RReLU(), False),
        (lambda: nn.RReLU(), True),
        (lambda: nn.RReLU(inplace=True), False),
    ],
)
def test_a_layer_over_a_transposed_input_trains_as_in_eager(layer, views):
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Transposed(layer(), views=views)
    model, x = lowtide.fit(copy.deepcopy(plain), "1GiB", work=50), torch.randn(8, 16, 16)
    losses = []
    for one in (plain, model):
        torch.manual_seed(1)
        losses.append(one(x))
        losses[-1].backward()
    assert torch.equal(*losses)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), model.buffers(), strict=True))


class Parts(nn.Module):
    """A loss, a transposed output and a slice, of which only the loss is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.first(x).sin()
        y = self.last(h)
        return y.square().mean(), y.transpose(1, 2), h[:, 1:, :]


def test_gradients_of_outputs_that_no_loss_uses_take_no_second_copy():
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, x = Parts(), torch.randn(8, 32, 64)
    plain(x)[0].backward()
    model = lowtide.fit(Parts(), "100% of plain", work=50, scope="process")
    model.load_state_dict(plain.state_dict())
    for _ in range(3):
        model.zero_grad()
        model(x)[0].backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert lowtide.memory_stats(model).spills == 0
    lowtide.unfit(model)
