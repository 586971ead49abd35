"""RMS norm's backward as one operator: the bits of autograd's chain, or errors no larger than its own."""

from __future__ import annotations

import pytest
import torch

from lowtide.errors import FaintScale
from lowtide.ops.rms_norm import rms_norm_backward, rms_norm_backward_from_output, row_parts
from lowtide.ops.scale import put_aside_columns
from tests.ops.test_batch_norm import error, normal

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SHAPES = [(2, 3, 8), (4, 7, 33), (40, 3000), (1, 5000), (3, 40001), (1, 1, 1), (0, 4)]
EPS = 1e-6


def chain(gradient: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    """As autograd writes it."""
    slope = (gradient * x).sum(-1, keepdim=True) * -0.5 * rstd.pow(3)
    return gradient * rstd + slope.expand(x.shape) / x.shape[-1] * (x.pow(1.0) * 2.0)


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_chain_in_parts_has_the_same_bits(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gradient = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    rstd = (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    made = rms_norm_backward(gradient, x, rstd, shape[-1])
    assert torch.equal(made, chain(gradient, x, rstd))
    assert made.stride() == x.stride()
    added = normal(*shape, dtype=dtype, seed=2)
    slope = (gradient * x).sum(-1, keepdim=True) * -0.5 * rstd.pow(3)
    joined = added + gradient * rstd + slope.expand(x.shape) / x.shape[-1] * (x.pow(1.0) * 2.0)
    assert torch.equal(rms_norm_backward(gradient, x, rstd, shape[-1], added), joined)
    over = gradient.clone()
    assert rms_norm_backward(over, x, rstd, shape[-1], added, out=over) is over
    assert torch.equal(over, joined)


@pytest.mark.parametrize(("rows", "row_B"), [(0, 4), (1, 2**20), (2, 2**20), (3, 2**19), (1000, 4096), (7, 1)])
def test_no_row_is_alone_that_was_not(rows: int, row_B: int) -> None:
    parts = list(row_parts(rows, row_B))
    assert [i for p in parts for i in range(p.start, p.stop)] == list(range(rows))
    assert all(p.stop - p.start >= min(2, rows) for p in parts)


@pytest.mark.parametrize("faint", [0, 2])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("rows", [(1,), (5, 9), (300,)], ids=str)
def test_gradients_from_output_are_as_accurate(rows: tuple[int, ...], dtype: torch.dtype, faint: int) -> None:
    width = 384
    x, gradient = normal(*rows, width, dtype=dtype), normal(*rows, width, dtype=dtype, seed=1)
    weight = normal(width, dtype=dtype, seed=2)
    weight = weight.sign() * weight.abs().clamp_min(0.05)
    weight[:faint] = torch.tensor([0.0, 1e-10], dtype=dtype)[:faint]
    rstd = (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    y = x * rstd * weight
    aside = put_aside_columns(x, weight, None)
    added = normal(*rows, width, dtype=dtype, seed=5)
    made, scales = rms_norm_backward_from_output(gradient, y, weight, rstd, aside, width, added)
    made -= added
    plain = chain(gradient * weight, x, rstd), (gradient * (x * rstd)).sum(tuple(range(x.dim() - 1)), keepdim=True)
    leaves = [t.double().detach().requires_grad_() for t in (x, weight)]
    true = torch.autograd.grad(
        torch.nn.functional.rms_norm(leaves[0], (width,), leaves[1], EPS), leaves, gradient.double()
    )
    for ours, theirs, exact in zip((made, scales), plain, (true[0], true[1].view(scales.shape)), strict=True):
        assert error(ours, exact) <= 8 * error(theirs, exact) + 64 * torch.finfo(dtype).eps


def test_too_many_faint_columns_stop_the_forward() -> None:
    with pytest.raises(FaintScale):
        put_aside_columns(normal(4, 64), normal(64).mul_(1e-20), None)
