"""A model that asks whether it is being compiled computes what it computes without lowtide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide
from tests.networks import differences, train, twin


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Chooser(nn.Module):
    """Sums in another order, and so with another rounding, where it believes that it is being compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64, 33))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x @ self.weight
        if torch.compiler.is_compiling():
            return h.flip(-1).cumsum(-1)[..., -1].square().mean()
        return h.cumsum(-1)[..., -1].square().mean()


class Looker(Chooser):
    """Looks at the data unless it is being compiled; no graph can hold that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and bool(x.isnan().any()):
            raise ValueError("not a number")
        return super().forward(x)


class Talker(Chooser):
    """Breaks into several graphs whatever it hears."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x)
        torch._dynamo.graph_break()
        return loss * 2


@pytest.mark.parametrize(("kind", "graphs"), [(Chooser, 1), (Looker, 1), (Talker, 2)])
def test_training_is_unchanged(kind: Callable[[], nn.Module], graphs: int) -> None:
    torch.manual_seed(0)
    plain = kind()
    fitted = lowtide.fit(twin(plain), budget="1MiB", work=1_000)
    batches = [torch.randn(8, 64) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    found = train(fitted, lambda m, x: m(x), batches)
    if kind is Talker:
        assert fitted.lowtide.plan.record.graphs in (1, 2)
    else:
        assert differences(expected, found) == []
        assert len(fitted.lowtide.session.executors) == graphs


def test_others_hear_the_truth() -> None:
    heard = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        heard.append(torch.compiler.is_compiling())
        return x + (1 if torch.compiler.is_compiling() else 2)

    lowtide.fit(Chooser(), budget="1MiB", work=1_000)(torch.randn(8, 64))
    assert torch.compile(ask, backend="eager")(torch.zeros(())).item() == 1
