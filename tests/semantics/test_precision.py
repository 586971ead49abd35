"""Autocast and gradient scaling, other dtypes, other memory formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import lowtide
from tests.semantics.pairs import WORK, Wide, batches, gradients, same, seeded, steps


class Mixed(nn.Module):
    """Layers that autocast treats differently."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.layers[0](self.norm(h)))
        with torch.autocast("cpu", enabled=False):
            h = h.to(self.norm.weight.dtype).softmax(-1)
        return F.dropout(F.gelu(self.layers[1](h)), 0.2)


def _scaled(dtype: torch.dtype, overflow: bool = False) -> Any:
    def scenario(module: nn.Module) -> list[Any]:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        seen: list[Any] = []
        for index, x in enumerate(batches(4)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = module(x)
            if overflow and index == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            seen += [loss.detach().clone(), norm.clone(), gradients(module), scaler.get_scale()]
        return seen

    return scenario


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_with_a_scaler(dtype: torch.dtype) -> None:
    same(lambda: Wide(Mixed()), _scaled(dtype))


def test_a_step_skipped_on_overflow() -> None:
    same(lambda: Wide(Mixed()), _scaled(torch.float16, overflow=True))


def test_autocast_around_forward_and_backward() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = module(x)
                loss.backward()
            seen += [loss.detach(), gradients(module)]
            module.zero_grad()
        return seen

    same(lambda: Wide(Mixed()), scenario)


def test_autocast_switched_between_steps() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for enabled in (True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = module(batches(1)[0])
            loss.backward()
            seen += [loss.detach(), gradients(module)]
            module.zero_grad()
        return seen

    same(lambda: Wide(Mixed()), scenario, spare=1.0, recomputes=False)


class Tied(nn.Module):
    """One layer used twice, in an autocast context of the model's own or of its caller's.

    Arguments:
        own: whether the model enters one; it is left for a while in between, and entered once more at the end.
    """

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.layer, self.other, self.own = nn.Linear(32, 32), nn.Linear(32, 32), own

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if not self.own:
            return self.layer(F.gelu(self.layer(h)))
        with torch.autocast("cpu", torch.bfloat16):
            h = F.gelu(self.layer(h))
            with torch.autocast("cpu", enabled=False):
                h = self.other(h.float())
            h = torch.utils.checkpoint.checkpoint(self.layer, h, use_reentrant=False)
            h = (
                h
                + F.linear(h, self.other.weight.to(torch.bfloat16))
                + F.linear(h, self.other.weight.to(torch.bfloat16))
            )
        with torch.autocast("cpu", torch.bfloat16):
            return (self.layer(h) + (self.layer.weight**2).sum()).float()


def _under_autocast(module: nn.Module, x: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, **options):
        return module(x).float()


def test_a_layer_that_autocast_casts_once_for_two_uses() -> None:
    """Its gradient is added up in the lower precision, by eager: an earlier capture added up what was cast back."""
    same(lambda: Wide(Tied(own=True)), steps(2))
    same(lambda: Wide(Tied(own=False)), steps(2, _under_autocast))


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = self.layer(F.gelu(self.layer(h)))
        torch.clear_autocast_cache()
        return self.layer(F.gelu(self.layer(h)))


def test_a_model_that_has_autocast_forget_what_it_has_cast() -> None:
    same(lambda: Wide(Forgetful()), steps(2, _under_autocast))


def test_autocast_that_keeps_nothing() -> None:
    same(lambda: Wide(Tied(own=False)), steps(2, lambda m, x: _under_autocast(m, x, cache_enabled=False)))


def _two_calls(module: nn.Module) -> None:
    x = batches(1)[0]
    with torch.autocast("cpu", torch.bfloat16):
        (module(x) - module(2 * x)).float().square().backward()


def test_two_calls_in_one_autocast_context_and_one_backward_are_refused() -> None:
    fitted = lowtide.fit(seeded(lambda: Wide(nn.Linear(32, 32))), "1MiB", work=WORK)
    with pytest.raises(lowtide.BackwardError, match=r"cache_enabled=False"):
        _two_calls(fitted)
    _two_calls(lowtide.fit(seeded(lambda: Wide(nn.Linear(32, 32))), "1MiB", work=WORK, numerics="reassociated"))


def _head_outside(module: nn.Module, *, cast: bool = True) -> Any:
    x, layer = batches(1)[0], next(m for m in module.modules() if isinstance(m, nn.Linear))
    with torch.autocast("cpu", torch.bfloat16):
        y = (
            F.linear(torch.ones(3, layer.in_features), layer.weight).float().square().sum()
            if cast
            else layer.weight.square().sum()
        )
        loss = module(x).float().square().sum() + y
    loss.backward()
    return layer.weight.grad


def test_a_parameter_that_code_outside_casts_in_the_same_autocast_context_is_refused() -> None:
    fitted = lowtide.fit(seeded(lambda: Wide(nn.Linear(32, 32))), "1MiB", work=WORK)
    with pytest.raises(lowtide.BackwardError, match="code outside the captured graph casts a parameter"):
        _head_outside(fitted)
    plain = seeded(lambda: Wide(nn.Linear(32, 32)))
    fitted.zero_grad()
    assert torch.equal(_head_outside(fitted, cast=False), _head_outside(plain, cast=False))  # a penalty is none


def test_two_calls_in_one_autocast_context_with_a_backward_each() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            for x in batches(2):
                module(x).backward()
        return gradients(module)

    same(lambda: Wide(nn.Linear(32, 32)), scenario, spare=1.0, recomputes=False)


def test_a_layer_on_both_sides_of_a_break_inside_one_autocast_context_is_refused() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                h = self.layer(h)
                torch._dynamo.graph_break()
                return self.layer(h).float()

    fitted = lowtide.fit(seeded(lambda: Wide(Broken())), "1MiB", work=WORK)
    with pytest.raises(lowtide.BackwardError, match="casts it once"):
        fitted(batches(1)[0]).backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_models_of_one_dtype(dtype: torch.dtype) -> None:
    same(lambda: Wide(Mixed()).to(dtype), steps(2, lambda m, x: m(x.to(dtype))))


def test_complex_parameters() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(17, dtype=torch.complex64))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            z = torch.fft.rfft(torch.tanh(h)) * self.weight
            z = z * torch.polar(torch.ones_like(z.real), z.abs()).conj()
            return torch.fft.irfft(z + torch.view_as_complex(torch.view_as_real(z) * 0.5), n=32).sin()

    same(lambda: Wide(Spectral()), steps())


def test_channels_last() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
            self.last = nn.Conv2d(16, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(F.max_pool2d(F.gelu(self.norm(self.first(x))), 3, 1, 1))

    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        for _ in range(2):
            y = module(x.to(memory_format=torch.channels_last))
            y.mean().backward()
            strides = [y.stride(), module.first.weight.stride(), module.first.weight.grad.stride()]
            seen += [y.detach().clone(), gradients(module), strides]
            module.zero_grad()
        return seen

    same(lambda: Images().to(memory_format=torch.channels_last), scenario, spare=0.2)


def test_a_switch_that_changes_how_operators_round_gets_a_plan_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Which implementations are bit-equal was tried with the switch as it stood."""
    fitted = lowtide.fit(Wide(Mixed()), "90% of plain", work=WORK)
    x = batches(1)[0]

    def plans() -> int:
        fitted(x).backward()
        return sum("planned 1 graph" in r.getMessage() for r in caplog.records)

    with caplog.at_level("INFO", "lowtide"):
        assert plans() == 1
        torch.backends.mkldnn.set_flags(_enabled=False)
        try:
            assert plans() == 2
        finally:
            torch.backends.mkldnn.set_flags(_enabled=True)
        assert plans() == 2
