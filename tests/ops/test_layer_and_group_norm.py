"""Other implementations of layer norm and group norm: the same bits, or errors no larger than torch's own."""

from __future__ import annotations

import pytest
import torch

from lowtide.errors import FaintScale
from lowtide.ops.group_norm import group_norm_again, group_norm_backward_from_output
from lowtide.ops.layer_norm import layer_norm_backward_from_output
from lowtide.ops.scale import capacity, put_aside, put_aside_columns
from tests.ops.test_batch_norm import error, normal

aten = torch.ops.aten
F32, F64 = torch.float32, torch.float64
GROUPED = [((3, 32, 5, 7), 4), ((1, 32, 3), 32), ((20, 32, 2, 2), 1), ((5, 32), 2), ((2, 32, 2, 3, 2), 8)]


def scales(shape: tuple[int, ...], dtype: torch.dtype, faint: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of both signs; the first few are faint."""
    weight, bias = normal(*shape, dtype=dtype, seed=1), normal(*shape, dtype=dtype, seed=2)
    weight = weight.sign() * weight.abs().clamp_min(0.05)
    weight.view(-1)[:faint] = torch.tensor([0.0, 1e-9], dtype=dtype)[:faint]
    return weight, bias


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
def test_group_norm_is_recomputed_bit_for_bit(shape: tuple[int, ...], groups: int, dtype: torch.dtype) -> None:
    x = normal(*shape, dtype=dtype) * 3 + 1
    weight, bias = scales((shape[1],), dtype, 1)
    size = x[0, 0].numel()
    y, mean, rstd = aten.native_group_norm(x, weight, bias, shape[0], shape[1], size, groups, 1e-5)
    assert torch.equal(group_norm_again(x, weight, bias, mean, rstd), y)


@pytest.mark.parametrize("faint", [0, 2])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
def test_group_norm_from_output_is_as_accurate(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype, faint: int
) -> None:
    x, gradient = normal(*shape, dtype=dtype) * 2 + 1, normal(*shape, dtype=dtype, seed=3)
    weight, bias = scales((shape[1],), dtype, faint)
    counts = shape[0], shape[1], x[0, 0].numel(), groups
    y, mean, rstd = aten.native_group_norm(x, weight, bias, *counts, 1e-5)
    found = group_norm_backward_from_output(
        gradient, y, weight, bias, mean, rstd, put_aside(x, weight, bias), [True] * 3
    )
    torchs = aten.native_group_norm_backward(gradient, x, mean, rstd, weight, *counts, [True] * 3)
    leaves = [t.double().detach().requires_grad_() for t in (x, weight, bias)]
    true = torch.autograd.grad(
        torch.nn.functional.group_norm(leaves[0], groups, leaves[1], leaves[2]), leaves, gradient.double()
    )
    compare(found, torchs, true, dtype)


@pytest.mark.parametrize("faint", [0, 2])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("rows", "shape"), [((7, 3), (48,)), ((1,), (32,)), ((50,), (4, 12)), ((600,), (1024,))], ids=str
)
def test_layer_norm_from_output_is_as_accurate(
    rows: tuple[int, ...], shape: tuple[int, ...], biased: bool, dtype: torch.dtype, faint: int
) -> None:
    x, gradient = normal(*rows, *shape, dtype=dtype) * 2 + 1, normal(*rows, *shape, dtype=dtype, seed=3)
    weight, shift = scales(shape, dtype, faint)
    bias = shift if biased else None
    y, mean, rstd = aten.native_layer_norm(x, list(shape), weight, bias, 1e-5)
    aside = put_aside_columns(x, weight, bias)
    assert aside.shape == (capacity(weight.numel()), mean.numel())
    found = layer_norm_backward_from_output(gradient, y, weight, bias, mean, rstd, aside, [True, True, biased])
    torchs = aten.native_layer_norm_backward(gradient, x, list(shape), mean, rstd, weight, bias, [True, True, biased])
    leaves = [t.double().detach().requires_grad_() for t in (x, weight, *([shift] if biased else []))]
    made = torch.nn.functional.layer_norm(leaves[0], shape, leaves[1], leaves[2] if biased else None)
    compare(found, torchs, torch.autograd.grad(made, leaves, gradient.double()), dtype)


def compare(
    found: tuple[torch.Tensor | None, ...],
    torchs: tuple[torch.Tensor | None, ...],
    true: tuple[torch.Tensor, ...],
    dtype: torch.dtype,
) -> None:
    for ours, theirs, exact in zip(found, torchs, true, strict=False):
        assert ours is not None
        assert theirs is not None
        assert ours.shape == theirs.shape
        assert error(ours, exact) <= 8 * error(theirs, exact) + 64 * torch.finfo(dtype).eps


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, True), (False, True, False)])
def test_only_gradients_that_are_wanted_are_made(mask: tuple[bool, ...]) -> None:
    x, gradient = normal(6, 16, 3, 3), normal(6, 16, 3, 3, seed=3)
    weight, bias = scales((16,), F32, 1)
    y, mean, rstd = aten.native_group_norm(x, weight, bias, 6, 16, 9, 4, 1e-5)
    aside = put_aside(x, weight, bias)
    made = group_norm_backward_from_output(gradient, y, weight, bias, mean, rstd, aside, mask)
    assert tuple(g is not None for g in made) == mask
    rows, grads = x.view(-1, 16), gradient.view(-1, 16)
    y, mean, rstd = aten.native_layer_norm(rows, [16], weight, bias, 1e-5)
    aside = put_aside_columns(rows, weight, bias)
    made = layer_norm_backward_from_output(grads, y, weight, bias, mean, rstd, aside, mask)
    assert tuple(g is not None for g in made) == mask


def test_too_many_faint_columns_stop_the_forward() -> None:
    with pytest.raises(FaintScale, match="numerics"):
        put_aside_columns(normal(4, 32), torch.zeros(32), None)
