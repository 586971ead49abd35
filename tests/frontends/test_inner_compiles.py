"""A model of which `torch.compile` has compiled a part: its kernels round otherwise than what lowtide captures."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide

compiled = functools.partial(torch.compile, backend="aot_eager")
SAID = r"is compiled by torch\.compile"


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@compiled
def sharpened(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).softmax(-1)


class CallsFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sharpened(self.layer(x)).square().mean()


class CallsMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    @compiled
    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.layer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


class CompilesLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.function is None:
            self.function = torch.compile(F.gelu)
        return self.function(self.layer(x)).square().mean()


def compiled_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), compiled(nn.LayerNorm(8)))  # type: ignore[arg-type]


def layer_compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    model[1].compile(backend="aot_eager")
    return model


def compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    model.compile(backend="aot_eager")
    return model


def compiled_whole() -> nn.Module:
    return compiled(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))  # type: ignore[return-value]


ALL = [
    CallsFunction,
    CallsMethod,
    CompilesLater,
    compiled_layer,
    layer_compiled_in_place,
    compiled_in_place,
    compiled_whole,
]


def trained(model: nn.Module) -> None:
    model(torch.ones(4, 8)).square().mean().backward()


@pytest.mark.parametrize("make", ALL)
def test_compiled_parts_are_refused_before_anything_has_run(make: Callable[[], nn.Module]) -> None:
    model, before = make(), torch.get_rng_state()
    with pytest.raises(lowtide.InexactCapture, match=SAID):
        trained(lowtide.fit(model, "1MiB", work=50))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("make", ALL)
def test_where_other_roundings_are_admitted_they_are_planned(make: Callable[[], nn.Module]) -> None:
    model = lowtide.fit(make(), "1MiB", numerics="reassociated", work=50)
    trained(model)
    assert "is compiled by torch.compile" in model.lowtide.plan.explain()


def test_a_plan_and_the_backend_say_what_they_are_compared_with() -> None:
    with pytest.raises(lowtide.InexactCapture, match=SAID):
        lowtide.plan(CallsFunction(), (torch.ones(4, 8),), budget="1MiB", work=50)
    torch.compile(CallsFunction(), backend="lowtide", options={"budget": "1MiB"})(torch.ones(4, 8)).backward()
