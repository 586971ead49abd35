"""Packed maximum pooling: torch's maxima, torch's indices in fewer bits, and torch's gradients to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lowtide.ir.call import Items
from lowtide.ops import windows
from lowtide.ops.pooling import is_channels_last
from lowtide.ops.windows import Pool
from tests.ops.test_bits import same, special

aten = torch.ops.aten
PLANES = (
    ((2, 2), (2, 2), (0, 0), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 2), (1, 2), (1, 0), (1, 1)),
    ((2, 2), (1, 1), (0, 0), (2, 3)),
    ((7, 7), (3, 2), (3, 3), (1, 1)),
    ((1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 3), (1, 2), (0, 1), (1, 1)),
    ((2, 2), (3, 3), (1, 1), (1, 1)),
)
VOLUMES = (
    ((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2)),
)
SHAPES = ((2, 3, 9, 11), (5, 17, 8, 9), (3, 9, 8), (1, 1, 7, 7), (3, 70, 7, 8), (2, 3, 7, 9, 8), (3, 7, 6, 8))
LAYOUTS = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}


def given(pool: Pool) -> list[Any]:
    """A pool as its kernels get it."""
    return [list(a.items) if isinstance(a, Items) else a for a in pool.arguments()]


def pooled(x: torch.Tensor, settings: Sequence[Sequence[int]], ceil: bool) -> tuple[Pool, torch.Tensor, torch.Tensor]:
    """What torch makes of it, and the pool."""
    y, indices = getattr(aten, f"max_pool{len(settings[0])}d_with_indices")(x, *settings, ceil)
    last = y.dim() - len(settings[0]) == 2 and y.stride() != torch.empty(y.shape).stride() and y.stride(1) == 1
    kernel, stride, padding, dilation = map(tuple, settings)
    return Pool(tuple(x.shape), tuple(y.shape), kernel, stride, padding, dilation, ceil, last), y, indices


def fits(shape: tuple[int, ...], settings: Sequence[Sequence[int]]) -> bool:
    """Whether windows have the dimensions of a shape, and are not wider than it."""
    kernel, _, _, dilation = settings
    extents = shape[-len(kernel) :]
    wide = any((k - 1) * d >= extent for k, d, extent in zip(kernel, dilation, extents, strict=True))
    return len(shape) - len(kernel) in (1, 2) and not wide


def cases(dtype: torch.dtype) -> list[tuple[torch.Tensor, Sequence[Sequence[int]], bool]]:
    """Inputs with many equal elements, in every layout, and what is asked of them."""
    found = []
    for shape in SHAPES:
        x = (special(shape, torch.float32, 1) * 0.5).round().to(dtype)
        for settings in (s for s in (*PLANES, *VOLUMES) if fits(shape, s)):
            if len(shape) == 4 and len(settings[0]) == 3:
                layouts = (x,)
            else:
                layouts = (x, x.contiguous(memory_format=LAYOUTS[len(shape)]))
            found += list(itertools.product(layouts, (settings,), (False, True)))
    return found


@pytest.mark.parametrize("by_torch", [False, True], ids=["core", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_all_is_as_torch_makes_it(dtype: torch.dtype, by_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for x, settings, ceil in cases(dtype):
        pool, y, indices = pooled(x, settings, ceil)
        tried += 1
        g = torch.empty_like(y).copy_(special(tuple(y.shape), torch.float32, 2).nan_to_num(0.7, 2.0, -3.0) * 0.37)
        expected = getattr(aten, f"max_pool{len(settings[0])}d_with_indices_backward")(g, x, *settings, ceil, indices)
        packed = windows.pack_pool_indices(indices, *given(pool))
        assert packed.numel() == (y.numel() * pool.windows().width + 7) // 8
        with monkeypatch.context() as patch:
            if by_torch:
                patch.setattr(windows, "float_code", lambda tensor: None)  # noqa: ARG005
                patch.setattr(windows, "PIECE", 2048)
                fresh = torch.empty_like(packed)
                windows.pack_windows_by_torch(fresh, windows.in_order(indices, pool.order), pool, pool.windows().width)
                assert torch.equal(fresh, packed)
            maxima, places = windows.max_pool_packed(x, *given(pool))
            assert same(y, maxima)
            assert torch.equal(places, packed)
            for gradient in (g, g.contiguous(), torch.stack([g, g], -1)[..., 0]):
                assert same(expected, windows.pool_gradient(gradient, packed, *given(pool)))
                assert same(expected, windows.pool_gradient_from_indices(gradient, indices, *given(pool)))
    assert tried > 40


@pytest.mark.parametrize(
    "change",
    [
        lambda p: Pool(p.input, p.output, (20, 20), p.stride, p.padding, p.dilation, False, False),  # too many taps
        lambda p: Pool(p.input, p.output, (1, 12), p.stride, (0, 5), p.dilation, False, False),  # wider than the input
        lambda p: Pool(
            p.input, (2, 3, 50, 2), p.kernel, p.stride, p.padding, p.dilation, False, False
        ),  # outside of it
    ],
)
def test_windows_that_cannot_be_packed_are_refused(change: Callable[[Pool], Pool]) -> None:
    pool = Pool((2, 3, 9, 11), (2, 3, 4, 5), (2, 2), (2, 2), (0, 0), (1, 1), False, False)
    pool.windows()
    with pytest.raises(ValueError, match="packed"):
        change(pool).windows()


def test_no_place_outside_of_the_input_is_written() -> None:
    """Codes and indices that no maximum has are left out: what tries an operator may hand it anything."""
    pool = Pool((1, 1, 4, 4), (1, 1, 3, 3), (3, 3), (2, 2), (1, 1), (1, 1), True, False)
    g = torch.ones(1, 1, 3, 3)
    out = windows.pool_gradient(g, torch.full((5,), 255, dtype=torch.uint8), *given(pool))
    assert not out.any()
    out = windows.pool_gradient_from_indices(g, torch.full((1, 1, 3, 3), 99), *given(pool))
    assert not out.any()
    assert windows.pack_pool_indices(torch.full((1, 1, 3, 3), -7), *given(pool)).numel() == 5


def test_strides_tell_which_layout_torch_takes_a_tensor_for() -> None:
    from lowtide.ir.geometry import Geometry

    assert not is_channels_last(Geometry("float32", (2, 3, 4, 5), (60, 20, 5, 1)))
    assert is_channels_last(Geometry("float32", (2, 3, 4, 5), (60, 1, 15, 3)))
    assert is_channels_last(Geometry("float32", (2, 3, 1, 1), (3, 1, 3, 3)))
    assert not is_channels_last(Geometry("float32", (2, 3, 1, 1), (3, 1, 1, 1)))
