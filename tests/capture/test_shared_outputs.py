"""Results that share memory, with each other or with what the model was given: gradients are added up as in eager."""

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
        self.chosen, self.given = chosen, torch.empty(0)

    def forward(self, x: torch.Tensor) -> Outputs:
        self.given = x
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
    """Of a loss that uses every result twice, and what the model is given besides."""
    x = torch.randn(37, 13, generator=torch.Generator().manual_seed(3)).requires_grad_()
    weighted = [
        (o * torch.cos(torch.arange(o.numel()).float()).view(o.shape)).mean() + o.square().mean() for o in model(x)
    ]
    (sum(weighted, torch.zeros(())) + x.square().mean()).backward()
    found = [x.grad, *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
    model.zero_grad()
    return found


def _pair(chosen: Callable[..., Outputs]) -> tuple[nn.Module, nn.Module]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Returns(chosen)
    return plain, copy.deepcopy(plain)


def _part_of_the_input(model: Returns, _: torch.Tensor, last: torch.Tensor) -> Outputs:
    return model.given[:, ::2], model.head(last)


def _parts_of_the_input(model: Returns, _: torch.Tensor, last: torch.Tensor) -> Outputs:
    return model.given[:, :5], model.given.t(), model.head(last)


def _weight(model: Returns, _: torch.Tensor, last: torch.Tensor) -> Outputs:
    return model.head.weight.view(-1), model.head(last)


def _expanded(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    mean = last.mean(0).expand(4, 13)
    return mean, mean[0], model.head(mean * h[:4])


def _across_a_break(model: Returns, h: torch.Tensor, last: torch.Tensor) -> Outputs:
    layers = torch.stack([h, last])
    scores = model.head(layers[-1])
    torch._dynamo.graph_break()
    return (scores + model.head(layers.sum(0)),)


SHARING = [
    _unused, _one_of_them, _copied, _halves, _used_view, _used_whole, _nested, _part_of_the_input, _parts_of_the_input,
    _weight, _expanded, _across_a_break,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
@pytest.mark.parametrize("chosen", SHARING, ids=lambda f: f.__name__.strip("_"))
def test_gradients_are_those_of_eager(chosen: Callable[..., Outputs]) -> None:
    plain, ours = _pair(chosen)
    fitted = lowtide.fit(ours, "1MiB", work=50)
    for _ in range(2):
        for expected, found in zip(_gradients(plain), _gradients(fitted), strict=True):
            assert expected is found or torch.equal(expected, found)


def test_what_shares_memory_in_eager_shares_it_here() -> None:
    _, ours = _pair(_used_view)
    layers, last, _ = lowtide.fit(ours, "1MiB", work=50)(torch.randn(37, 13))
    assert last.untyped_storage().data_ptr() == layers.untyped_storage().data_ptr()
    assert torch.equal(layers[-1], last)


@pytest.mark.parametrize("index", [0, 1])
def test_overwriting_a_result_that_others_share_is_refused(index: int) -> None:
    """Autograd would not see that the others change with it."""
    _, ours = _pair(_used_view)
    outputs = lowtide.fit(ours, "1MiB", work=50)(torch.randn(37, 13))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        outputs[index].mul_(2)


def test_models_inside_transforms_of_torch_are_captured() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(13, 13)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.func.grad(lambda w: (x.detach() @ w).tanh().square().sum())(self.layer.weight)
            return self.layer(x).sum() + (x @ steps).mean()

    torch._dynamo.reset()
    plain = Inner()
    ours = copy.deepcopy(plain)
    x = torch.randn(37, 13)
    for model in (plain, lowtide.fit(ours, "1MiB", work=50)):
        model(x).backward()
    for expected, found in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad)  # type: ignore[arg-type]
