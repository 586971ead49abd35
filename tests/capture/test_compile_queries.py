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
    """Computes something else where it believes that it is being compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64, 33))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x @ self.weight
        if torch.compiler.is_compiling():
            return h.flip(-1).cumsum(-1)[..., -1].square().mean() * 2
        return h.cumsum(-1)[..., -1].square().mean()


class Looker(Chooser):
    """Looks at what it computes unless it is being compiled; no graph can hold that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and bool((x @ self.weight).isnan().any()):
            raise ValueError("not a number")
        return super().forward(x)


class Talker(Chooser):
    """Breaks into several graphs whatever it hears."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x)
        torch._dynamo.graph_break()
        return loss * 2


@pytest.mark.parametrize("kind", [Chooser, Looker, Talker])
def test_training_is_unchanged(kind: Callable[[], nn.Module]) -> None:
    """Where what follows a "no" cannot be captured as one graph, the model still hears "no", and runs in pieces."""
    torch.manual_seed(0)
    plain = kind()
    fitted = lowtide.fit(twin(plain), budget="1MiB", work=200)
    batches = [torch.randn(8, 64) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []
    fidelity = fitted.lowtide.plan.record.fidelity
    assert fidelity.is_exact
    assert any("was answered no" in fact and "test_compile_queries.py" in fact for fact in fidelity.established)


def test_where_other_roundings_are_admitted_the_place_is_told_and_the_plan_says_so() -> None:
    torch.manual_seed(0)
    fitted = lowtide.fit(Looker(), budget="1MiB", work=200, numerics="reassociated")
    fitted(torch.randn(8, 64)).backward()
    record = fitted.lowtide.plan.record
    assert record.graphs == 1
    (doubt,) = record.fidelity.doubts
    assert "was told yes" in doubt.cause
    assert doubt.source.startswith("capture/test_compile_queries.py:")
    assert doubt.source in fitted.lowtide.plan.explain(verbose=True)


def test_what_one_model_was_told_another_is_not() -> None:
    torch.manual_seed(0)
    lowtide.fit(Looker(), budget="1MiB", work=200, numerics="reassociated")(torch.randn(8, 64))
    torch._dynamo.reset()
    fitted = lowtide.fit(Looker(), budget="1MiB", work=200)
    fitted(torch.randn(8, 64))
    assert fitted.lowtide.plan.record.fidelity.is_exact


def test_torch_compile_tells_the_truth_and_says_with_what_it_compares() -> None:
    torch.manual_seed(0)
    plain = Chooser()
    compiled = torch.compile(twin(plain), backend="lowtide", options={"budget": "1MiB", "work": 200})
    reference = torch.compile(plain, backend="eager")
    x = torch.randn(8, 64)
    assert torch.equal(reference(x), compiled(x))
    assert not torch.equal(plain(x), compiled(x)), "the network tells one from the other"


def test_others_hear_the_truth() -> None:
    heard = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        heard.append(torch.compiler.is_compiling())
        return x + (1 if torch.compiler.is_compiling() else 2)

    lowtide.fit(Chooser(), budget="1MiB", work=1_000)(torch.randn(8, 64))
    assert torch.compile(ask, backend="eager")(torch.zeros(())).item() == 1


class Sums(nn.Module):
    """Adds up after a break: the first graph gets a gradient whose elements are one and the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        torch._dynamo.graph_break()
        return (h * 2 if torch.compiler.is_compiling() else h).sum()


def test_what_was_found_when_code_was_read_holds_of_every_capture_of_it() -> None:
    fitted = lowtide.fit(Sums(), "1MiB", work=50)
    fitted(torch.randn(3, 4)).backward()  # gradients come otherwise than the first capture supposes: it is done again
    fitted(torch.randn(3, 4))
    fidelity = fitted.lowtide.plan.record.fidelity
    assert fidelity.reference == "plain PyTorch"
    assert not any("hears that it is being compiled" in fact for fact in fidelity.established)
