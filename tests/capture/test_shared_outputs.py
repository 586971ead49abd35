"""Results that share memory: their gradients are added up as in eager, or the capture is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide

Outputs = tuple[torch.Tensor, ...]


class Returns(nn.Module):
    """Two layers and a head; a function says what is returned of them."""

    def __init__(self, chosen: Callable[[Returns, torch.Tensor, torch.Tensor], Outputs]) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(13, 13), nn.Linear(13, 13), nn.Linear(13, 3)
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> Outputs:
        h = self.first(x).tanh()
        return self.chosen(self, h, self.second(h).tanh())


def _used_view(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    return layers, layers[-1], model.head(layers[-1])


def _used_whole(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    return layers, layers[-1], model.head(layers).sum(0)


def _unused(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    return layers, layers[-1], model.head(last)


def _one_of_them(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    return layers[-1], model.head(layers[-1]), model.head(layers[0])


def _copied(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    return layers, layers[-1].clone(), model.head(layers[-1])


def _nested(_: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    view = layers[-1]
    return layers, view, view[:5]


def _halves(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    mean, spread = last.chunk(2, -1)
    return mean, spread, model.head(torch.cat([mean * spread.exp()[:, :6].sum(), h], -1)[:, :13])


def _gradients(model: nn.Module) -> list[torch.Tensor | None]:
    x = torch.randn(37, 13, generator=torch.Generator().manual_seed(3))
    weighted = [(o * torch.cos(torch.arange(o.numel()).float()).view(o.shape)).mean() for o in model(x)]
    sum(weighted, torch.zeros(())).backward()
    return [p.grad for p in model.parameters()]


def _pair(chosen: Callable[..., Outputs]) -> tuple[nn.Module, nn.Module]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Returns(chosen)
    return plain, copy.deepcopy(plain)


@pytest.mark.parametrize("chosen", [_unused, _one_of_them, _copied, _halves], ids=lambda f: f.__name__.strip("_"))
def test_gradients_are_those_of_eager(chosen: Callable[..., Outputs]) -> None:
    plain, ours = _pair(chosen)
    assert all(map(torch.equal, _gradients(plain), _gradients(lowtide.fit(ours, "1MiB", work=50))))


@pytest.mark.parametrize("chosen", [_used_view, _used_whole, _nested], ids=lambda f: f.__name__.strip("_"))
def test_what_is_used_inside_as_well_is_refused_where_it_has_to_be_exact(chosen: Callable[..., Outputs]) -> None:
    _, ours = _pair(chosen)
    with pytest.raises(lowtide.InexactCapture, match=r"test_shared_outputs\.py:\d+: results that share memory"):
        _gradients(lowtide.fit(ours, "1MiB", work=50))
    assert all(p.grad is None for p in ours.parameters())


def test_it_trains_where_other_roundings_are_accepted() -> None:
    plain, ours = _pair(_used_view)
    found = _gradients(lowtide.fit(ours, "1MiB", work=50, numerics="reassociated"))
    for expected, close in zip(_gradients(plain), found, strict=True):
        torch.testing.assert_close(expected, close)


class Detects(Returns):
    """Returns its loss first, as models of transformers do when they are given labels."""

    def forward(self, x: torch.Tensor) -> Outputs:
        layers, last, scores = super().forward(x)
        return scores.square().mean(), layers, last


def test_results_that_get_no_gradient_are_no_reason() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Detects(_used_view)
    ours = copy.deepcopy(plain)
    x = torch.randn(37, 13)
    for model in (plain, lowtide.fit(ours, "1MiB", work=50)):
        model(x)[0].backward()
    for expected, found in zip(plain.parameters(), ours.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert torch.equal(expected.grad, found.grad)


def test_a_refusal_that_comes_with_the_gradients_says_what_has_run() -> None:
    """The loss is the first guess at what is trained on."""
    torch._dynamo.reset()
    fitted = lowtide.fit(Detects(_used_view), "1MiB", work=50)
    loss, layers, last = fitted(torch.randn(37, 13))
    with pytest.raises(lowtide.InexactCapture) as refused:
        (loss + layers.sum() + last.square().sum()).backward()
    assert "The forward has run" in refused.value.__notes__[0]
    assert all(p.grad is None for p in fitted.parameters())
