"""Batch norm's other implementations, tensor by tensor: the same bits, or errors no larger than torch's own."""

from __future__ import annotations

import math

import pytest
import torch

from lowtide.errors import FaintScale
from lowtide.ops.batch_norm import batch_norm_again, batch_norm_backward_from_output
from lowtide.ops.batch_norm_in_place import batch_norm_backward_from_output_over, batch_norm_backward_over
from lowtide.ops.scale import capacity, declines, faint_channels, put_aside

aten = torch.ops.aten
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SHAPES = [(4, 3, 5, 7), (1, 7, 9, 9), (8, 33, 4, 3), (16, 5, 1, 1), (6, 64), (3, 8, 11), (2, 3, 2, 3, 4), (2, 1, 1, 1)]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def normal(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("dtype", "scales"), [(F32, F32), (F64, F64), (BF16, F32), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_output_is_recomputed_bit_for_bit(
    shape: tuple[int, ...], dtype: torch.dtype, scales: torch.dtype, layout: torch.memory_format, affine: bool
) -> None:
    if layout is torch.channels_last and len(shape) != 4:
        pytest.skip("no such layout")
    x = (normal(*shape, dtype=F64) * 3 + 1).to(dtype).contiguous(memory_format=layout)
    channels = shape[1]
    weight, bias = (normal(channels, dtype=scales, seed=s) if affine else None for s in (1, 2))
    moving = torch.zeros(channels, dtype=scales), torch.ones(channels, dtype=scales)
    y, mean, invstd, *_ = aten._native_batch_norm_legit_functional(x, weight, bias, *moving, True, 0.1, 1e-5)
    again = batch_norm_again(x, weight, bias, mean, invstd)
    assert torch.equal(again, y)
    assert again.stride() == y.stride()
    assert again.dtype == y.dtype


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30, math.inf, math.nan, -0.0])
def test_output_is_recomputed_whatever_the_scale(scale: float) -> None:
    x = normal(4, 3, 5, 5)
    x[0, 1] = 0.0
    weight, bias = torch.tensor([1.0, scale, -2.0]), torch.tensor([0.5, 2.0, 0.0])
    y, mean, invstd = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    assert torch.equal(batch_norm_again(x, weight, bias, mean, invstd).isnan(), y.isnan())
    assert torch.equal(batch_norm_again(x, weight, bias, mean, invstd).nan_to_num(7.0), y.nan_to_num(7.0))


def exact_gradients(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> list[torch.Tensor]:
    """In double precision, from what was given."""
    leaves = [t.double().detach().requires_grad_() for t in (x, weight, bias)]
    y = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], True, 0.1, eps)
    return list(torch.autograd.grad(y, leaves, gradient.double()))


def error(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found.double() - true).abs().max() / true.abs().max().clamp_min(1e-30))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("faint", [(), (0,), (3, 17)])
@pytest.mark.parametrize("shape", [(8, 32, 7, 5), (64, 32), (5, 32, 9)], ids=str)
def test_gradients_from_output_are_as_accurate_as_those_from_input(
    shape: tuple[int, ...], faint: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format
) -> None:
    if layout is torch.channels_last and len(shape) != 4:
        pytest.skip("no such layout")
    x = (normal(*shape, dtype=dtype) * 2 + 1).contiguous(memory_format=layout)
    gradient = normal(*shape, dtype=dtype, seed=3).contiguous(memory_format=layout)
    weight, bias = normal(32, dtype=dtype, seed=1), normal(32, dtype=dtype, seed=2)
    weight = weight.sign() * weight.abs().clamp_min(0.05)
    for channel, scale in zip(faint, (0.0, 1e-9), strict=False):
        weight[channel] = scale
    y, mean, invstd = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    aside = put_aside(x, weight, bias)
    assert aside.shape == (capacity(32), shape[0], *shape[2:])
    assert faint_channels(weight, bias) == list(faint)
    found = batch_norm_backward_from_output(gradient, y, weight, bias, mean, invstd, aside, [True] * 3)
    torchs = aten.native_batch_norm_backward(gradient, x, weight, None, None, mean, invstd, True, 1e-5, [True] * 3)
    true = exact_gradients(gradient, x, weight, bias, 1e-5)
    unit = torch.finfo(dtype).eps
    for ours, theirs, exact in zip(found, torchs, true, strict=True):
        assert ours is not None
        assert ours.stride() == theirs.stride()
        assert error(ours, exact) <= 8 * error(theirs, exact) + 64 * unit
    if faint and found[0] is not None:
        assert torch.equal(found[0][:, faint[0]], torch.zeros_like(x[:, 0]))


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, True)])
def test_some_channels_at_a_time_over_the_gradient(mask: tuple[bool, ...]) -> None:
    x, gradient = normal(3, 40, 17, 16), normal(3, 40, 17, 16, seed=3)
    weight, bias = normal(40, seed=1), normal(40, seed=2)
    weight = weight.sign() * weight.abs().clamp_min(0.05)
    weight[[5, 39]] = 0.0
    y, mean, invstd = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    torchs = aten.native_batch_norm_backward(gradient, x, weight, None, None, mean, invstd, True, 1e-5, mask)
    over = gradient.clone()
    found = batch_norm_backward_over(over, x, weight, None, None, mean, invstd, True, 1e-5, mask)
    assert found[0] is over
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(found, torchs, strict=True) if a is not None)
    assert [g is not None for g in found] == list(mask)
    aside, over = put_aside(x, weight, bias), gradient.clone()
    once = batch_norm_backward_from_output(gradient, y, weight, bias, mean, invstd, aside, mask)
    found = batch_norm_backward_from_output_over(over, y, weight, bias, mean, invstd, aside, mask)
    assert found[0] is over
    assert all(torch.equal(a, b) for a, b in zip(found, once, strict=True) if a is not None and b is not None)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, True), (True, True, False)])
def test_only_gradients_that_are_wanted_are_made(mask: tuple[bool, ...]) -> None:
    x, gradient, weight, bias = normal(6, 16, 3, 3), normal(6, 16, 3, 3, seed=3), torch.ones(16), torch.zeros(16)
    weight[2] = 0.0
    y, mean, invstd = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5)
    aside = put_aside(x, weight, bias)
    every = batch_norm_backward_from_output(gradient, y, weight, bias, mean, invstd, aside, [True] * 3)
    some = batch_norm_backward_from_output(gradient, y, weight, bias, mean, invstd, aside, mask)
    for wanted, one, all_ in zip(mask, some, every, strict=True):
        assert (one is not None and one.numel() > 0) == wanted
        if one is not None and all_ is not None and wanted:
            assert torch.equal(one, all_)


def test_too_many_faint_channels_stop_the_forward() -> None:
    x, weight = normal(4, 32, 3, 3), torch.ones(32)
    weight[:3] = 0.0
    with pytest.raises(FaintScale, match="3 of a normalisation's 32 scales"):
        put_aside(x, weight, torch.zeros(32))
    assert capacity(32) == 2


@pytest.mark.parametrize(
    ("scale", "shift", "faint"),
    [
        *((0.0, 0.0, True), (1e-12, 0.0, True), (1e12, 0.0, True), (math.nan, 0.0, True), (math.inf, 0.0, True)),
        *((1.0, 63.0, False), (1.0, 65.0, True), (-1e-3, 0.05, False), (-1e-3, -0.1, True), (1.0, math.nan, True)),
    ],
)
def test_what_is_faint(scale: float, shift: float, faint: bool) -> None:
    weight, bias = torch.ones(8), torch.zeros(8)
    weight[5], bias[5] = scale, shift
    assert faint_channels(weight, bias) == ([5] if faint else [])
    assert declines(weight, bias) == faint
    assert declines(torch.zeros(8))
    assert not declines(torch.ones(8), torch.zeros(8))
