"""Generated code for graphs of unusual shape: constants that nobody passes, chains of views without end."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import differences, train, twin


class Constants(nn.Module):
    """Tensors made from Python numbers in the forward: nobody passes them, the capture holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, -2.0, 3.0, 0.5] * 2)
        order = torch.tensor([[7, 6, 5, 4], [3, 2, 1, 0]]).view(-1)
        return (F.gelu(self.linear(x)) * scale)[:, order].square().mean()


class Views(nn.Module):
    """More views in a row than one expression can nest."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.linear(x))
        for _ in range(70):
            h = h.transpose(0, 1).unsqueeze(0)[0]
        return h.square().mean()


@pytest.mark.parametrize("make", [Constants, Views])
def test_training_is_unchanged(make: type[nn.Module]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = make()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=1_000)
    batches = [torch.randn(16, 8) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []
