"""Functions that Dynamo looks through, though plain PyTorch runs something else: compiled, scripted or cached ones."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device.modules import replaced_call

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


def made(make: Callable[[], nn.Module]) -> nn.Module:
    """A model; the test is left out where Lightning has put a function of its own, which Dynamo cannot trace, in place
    of torch.compile."""
    if make is CompilesLater and hasattr(torch.compile, "__wrapped__"):
        pytest.skip("torch.compile is another library's")
    return make()


def trained(model: nn.Module) -> None:
    model(torch.ones(4, 8)).square().mean().backward()


@pytest.mark.parametrize("make", ALL)
def test_compiled_parts_are_refused_before_anything_has_run(make: Callable[[], nn.Module]) -> None:
    model, before = made(make), torch.get_rng_state()
    with pytest.raises(lowtide.InexactCapture, match=SAID):
        trained(lowtide.fit(model, "1MiB", work=50))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("make", ALL)
def test_where_other_roundings_are_admitted_they_are_planned(make: Callable[[], nn.Module]) -> None:
    model = lowtide.fit(made(make), "1MiB", numerics="reassociated", work=50)
    trained(model)
    assert "is compiled by torch.compile" in " ".join(model.lowtide.plan.explain(verbose=True).split())


@pytest.mark.parametrize("backend", ["eager", "lowtide"])
def test_backends_that_run_what_is_captured_are_nothing_to_doubt(backend: str) -> None:
    options = {"budget": "1MiB"} if backend == "lowtide" else None
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), backend=backend, options=options)
    lowtide.plan(model, (torch.ones(4, 8),), budget="1MiB", work=50)


def test_a_plan_and_the_backend_say_what_they_are_compared_with() -> None:
    with pytest.raises(lowtide.InexactCapture, match=SAID):
        lowtide.plan(CallsFunction(), (torch.ones(4, 8),), budget="1MiB", work=50)
    torch.compile(CallsFunction(), backend="lowtide", options={"budget": "1MiB"})(torch.ones(4, 8)).backward()


@functools.lru_cache
def noise() -> torch.Tensor:
    return torch.randn(8)


@functools.lru_cache
def steps_taken() -> torch.Tensor:
    return torch.zeros(8)


@functools.lru_cache
def positions(size: int) -> torch.Tensor:
    return F.normalize(torch.arange(size) / 8.0, dim=0)  # whose name has "normal" in it, and which draws nothing


class Cached(nn.Module):
    """Multiplies by what a function under a cache returns."""

    def __init__(self, factor: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(8, 8), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.factor()).square().mean()


@pytest.mark.parametrize("factor", [noise, lambda: steps_taken().add_(1)], ids=["drawn", "changed"])
def test_what_a_cache_would_keep_is_refused(factor: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(lowtide.InexactCapture, match="is under a cache"):
        trained(lowtide.fit(Cached(factor), "1MiB", work=50))


def gradients(model: nn.Module, steps: int = 4) -> list[torch.Tensor]:
    for step in range(steps):
        trained_on = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        model(trained_on).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_what_a_cache_gives_again_is_captured() -> None:
    plain = Cached(lambda: positions(8))
    fitted = lowtide.fit(copy.deepcopy(plain), "1MiB", work=50)
    assert all(map(torch.equal, gradients(plain), gradients(fitted)))
    assert fitted.lowtide.plan.record.graphs == 1


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(torch.softmax(x, -1), [8], weight)


def counted(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.size(-1)) + 1


with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    scripted_norm, scripted_count = torch.jit.script(normed), torch.jit.script(counted)


class Scripted(nn.Module):
    """Calls scripted functions, with gradients and without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.last(torch.tanh(self.first(x)) * scripted_count(x))
        return scripted_norm(h, self.first.bias).square().mean()


def test_scripted_functions_run_as_they_are() -> None:
    plain = Scripted()
    fitted = lowtide.fit(copy.deepcopy(plain), "1MiB", work=50)
    assert all(map(torch.equal, gradients(plain), gradients(fitted)))
    assert fitted.lowtide.plan.record.graphs == 2, "one of them has gradients"


class Sets(nn.Module):
    """Computes a part in another default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        factor = torch.arange(8) / 7.0
        torch.set_default_dtype(torch.float32)
        return (self.layer(x).double() * factor).square().mean()


def test_a_setting_that_the_forward_changes_holds_for_what_follows() -> None:
    plain = Sets()
    fitted = lowtide.fit(copy.deepcopy(plain), "1MiB", work=50)
    assert all(map(torch.equal, gradients(plain), gradients(fitted)))


def test_a_model_that_was_compiled_is_compiled_again_when_it_is_fitted_no_more() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    model.compile(backend="aot_eager")
    compiled = replaced_call(model)
    lowtide.fit(model, "1MiB", work=50, numerics="reassociated")(torch.ones(4, 8)).sum().backward()
    with pytest.raises(lowtide.InexactCapture, match=SAID):
        lowtide.fit(model, "1MiB")
    lowtide.fit(model, "2MiB", work=50, numerics="reassociated")
    assert replaced_call(lowtide.unfit(model)) is compiled
