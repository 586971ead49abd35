"""A byte per element: how far it is off, what does not survive it, and that torch's version does the same."""

from __future__ import annotations

import pytest
import torch

from lowtide.ops import compression
from lowtide.ops.compression import compress, decompress
from tests.ops.test_bits import layouts, order_of

BLOCK = 256


def blocks(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude around every element."""
    flat = torch.nn.functional.pad(x.flatten().double().abs(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    return flat.amax(1, keepdim=True).expand(-1, BLOCK).flatten()[: x.numel()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (256,), (257,), (3, 5, 7), (2, 3, 17, 11), (131, 1003), (0, 3)], ids=str)
def test_elements_are_off_by_half_a_scale(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for x in layouts((torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)):
        order = order_of(x)
        packed = compress(x, order)
        assert packed.numel() == (x.numel() + 3) // 4 * 4 + (x.numel() + BLOCK - 1) // BLOCK * 4
        again = decompress(packed, dtype, shape, order)
        assert again.stride() == x.stride()
        rows, off = x.permute(order), (again.double() - x.double()).abs().permute(order).flatten()
        rounding = torch.finfo(dtype).eps * rows.double().abs().flatten()
        assert (off <= blocks(rows) / 254 * 1.0001 + rounding).all()
        with monkeypatch.context() as patch:
            patch.setattr(compression, "float_code", lambda tensor: None)  # noqa: ARG005
            patch.setattr(compression, "PIECE", 1024)
            assert torch.equal(compress(x, order), packed)
            assert torch.equal(decompress(packed, dtype, shape, order), again)


def test_what_is_not_finite_is_no_number_afterwards() -> None:
    x = torch.ones(3 * BLOCK)
    x[5], x[BLOCK + 5] = float("inf"), float("nan")
    again = decompress(compress(x, (0,)), x.dtype, x.shape, (0,))
    assert again[: 2 * BLOCK].isnan().all()
    assert torch.equal(again[2 * BLOCK :], x[2 * BLOCK :])


def test_zeros_and_the_smallest_numbers_survive() -> None:
    assert not decompress(compress(torch.zeros(300), (0,)), torch.float32, (300,), (0,)).any()
    tiny = torch.full((300,), 1e-42)
    assert (decompress(compress(tiny, (0,)), torch.float32, (300,), (0,)) - tiny).abs().max() <= 1e-42
