"""Runs tile by tile: bit for bit what the operators give on whole tensors, whatever the sizes, layouts and threads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lowtide.device.calls import resolve
from lowtide.device.observer import observe
from lowtide.ir.call import Arg, Ref
from lowtide.ops.boxes import GRAIN, boxes
from lowtide.ops.elementwise import APPROXIMATED, ROUNDED
from lowtide.ops.tiles import Step, Tiles, carry_out, made_ready, tiled

A, B, M = Ref(0), Ref(1), Ref(2)
_FACTORS = {"aten.pow.Tensor_Scalar": 1.7, "aten.threshold_backward.default": 0, "aten.leaky_relu.default": 0.1}
_OTHER: dict[str, tuple[Arg, ...]] = {
    "aten.clamp.default": (A, -0.5, 0.5),
    "aten.clamp_min.default": (A, 0.25),
    "aten.clamp_max.default": (A, 0.25),
    "aten.hardtanh.default": (A, -0.5, 0.5),
    "aten.hardtanh_backward.default": (A, B, -0.5, 0.5),
    "aten.leaky_relu_backward.default": (A, B, 0.1, False),
    "aten.elu_backward.default": (A, 1.0, 1.0, 1.0, False, B),
    "aten.softplus_backward.default": (A, B, 1.0, 20.0),
    "aten.addcmul.default": (A, B, B),
    "aten.addcdiv.default": (A, B, B),
    "aten.where.self": (M, A, B),
    "aten.masked_fill.Scalar": (A, M, -2.0),
    "aten.logical_not.default": (M,),
    "aten.bitwise_not.default": (M,),
}
_MASKS = ("logical_and", "logical_or", "bitwise_and", "bitwise_or")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "logical", "bitwise")


def _arguments(op: str) -> tuple[Arg, ...]:
    name = op.split(".")[1]
    if op in _OTHER:
        return _OTHER[op]
    if name in _MASKS:
        return (M, M)
    if op in _FACTORS and "backward" not in op:
        return (A, _FACTORS[op])
    if op in _FACTORS:
        return (A, B, _FACTORS[op])
    if op.endswith(".Scalar"):
        return (A, 0.3125)
    binary = op.endswith((".Tensor", "Tensor_Tensor")) or "backward" in op or name in ("maximum", "minimum")
    return (A, B) if binary else (A,)


@functools.cache
def _given(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    a, b = (torch.randn(count, generator=generator).mul(1.5).to(dtype) for _ in range(2))
    return [a.abs() + 0.01 if dtype is torch.bfloat16 else a, b.abs() + 0.01, b > 0]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


_TWO_STEPS = sorted((ROUNDED | APPROXIMATED) - {"aten._to_copy.default", "aten.native_dropout_backward.default"})


@pytest.mark.parametrize("op", _TWO_STEPS)
def test_an_operator_on_tiles_gives_the_same_bits_and_allocates_one_scratch_buffer(op: str, threads: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        count = (2 * GRAIN + 1) * threads + 77
        given = _given(count, dtype)
        args = _arguments(op)
        whole = resolve(op)(*[given[a.index] if isinstance(a, Ref) else a for a in args])
        name = str(whole.dtype).removeprefix("torch.")
        copied = Step("aten.clone.default", (Ref(-1),), (), name)
        run = Tiles(3, (Step(op, args, (), name), copied), (1,))
        with observe("cpu") as seen:
            result = tiled(run.text, [((count,), (1,))], *given)
        assert _same(result, whole), dtype
        assert len([e for e in seen.events if e.size_B > 0]) == 2


_GELU = Tiles(
    1,
    (
        Step("aten.mul.Tensor", (A, 0.5), (), "float32"),
        Step("aten.pow.Tensor_Scalar", (A, 3.0), (), "float32"),
        Step("aten.mul.Tensor", (Ref(-2), 0.044715), (), "float32"),
        Step("aten.add.Tensor", (A, Ref(-3)), (), "float32"),
        Step("aten.mul.Tensor", (Ref(-4), 0.7978845608028654), (), "float32"),
        Step("aten.tanh.default", (Ref(-5),), (), "float32"),
        Step("aten.add.Tensor", (Ref(-6), 1.0), (), "float32"),
        Step("aten.mul.Tensor", (Ref(-1), Ref(-7)), (), "float32"),
    ),
    (7,),
)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return x.mul(0.5) * (torch.tanh((x + x.pow(3.0) * 0.044715) * 0.7978845608028654) + 1.0)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (1,), (7,), (3, 1, 5), (2, 129, 511), (GRAIN,), (5, GRAIN + 1)])
@pytest.mark.usefixtures("threads")
def test_a_run_is_the_same_for_any_sizes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert _same(tiled(_GELU.text, [(x.shape, x.stride())], x), _gelu(x))


def test_a_run_may_overwrite_what_it_is_given() -> None:
    for shape in ((100_003,), (3, 50_000)):
        x = torch.randn(shape)
        wanted = _gelu(x)
        result = tiled(_GELU.text, [(x.shape, x.stride())], x, into=x)
        assert _same(result, wanted)
        assert result.data_ptr() == x.data_ptr()


def test_what_is_read_after_the_result_is_made_is_not_overwritten_before() -> None:
    run = Tiles(
        2,
        (Step("aten.mul.Tensor", (A, 2.0), (), "float32"), Step("aten.add.Tensor", (A, Ref(-1)), (), "float32")),
        (0, 1),
    )
    x = torch.randn(70_001)
    wanted = (x * 2.0, x + x * 2.0)
    first, second = tiled(run.text, [((70_001,), (1,))] * 2, x, x, into=x)
    assert _same(first, wanted[0])
    assert _same(second, wanted[1])


def _scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y + x) * 0.5


_SCALED = Tiles(
    2,
    (
        Step("aten.mul.Tensor", (A, B), (), "float32"),
        Step("aten.add.Tensor", (Ref(-1), A), (), "float32"),
        Step("aten.mul.Scalar", (Ref(-2), 0.5), (), "float32"),
    ),
    (2,),
)

_LAYOUTS: list[Callable[[], tuple[torch.Tensor, torch.Tensor]]] = [
    lambda: (torch.randn(6, 70, 300), torch.randn(300)),
    lambda: (torch.randn(6, 70, 300), torch.randn(70, 1)),
    lambda: (torch.randn(6, 70, 300), torch.randn(6, 1, 1)),
    lambda: (torch.randn(6, 70, 300), torch.tensor(1.25)),
    lambda: (torch.randn(6, 70, 600)[..., 300:], torch.randn(6, 70, 600)[..., :300]),
    lambda: (torch.randn(4, 9, 33, 35).to(memory_format=torch.channels_last), torch.randn(1, 9, 1, 1)),
    lambda: (torch.randn(4, 9, 33, 35).to(memory_format=torch.channels_last), torch.randn(4, 9, 33, 35)),
    lambda: (torch.randn(300, 70).t(), torch.randn(70, 300)),
    lambda: (torch.randn(2, GRAIN * 3 + 5), torch.randn(2, 1)),
    lambda: (torch.randn(1, 5000, 1), torch.randn(1, 1, 1)),
]


@pytest.mark.parametrize("make", _LAYOUTS)
@pytest.mark.usefixtures("threads")
def test_strided_and_broadcast_tensors_meet_element_for_element(
    make: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    x, y = make()
    wanted = _scaled(x, y)
    assert _same(tiled(_SCALED.text, [(wanted.shape, wanted.stride())], x, y), wanted)


def test_a_row_may_be_passed_in_several_shapes() -> None:
    x, y = torch.randn(8, 16, 700), torch.randn(128, 700)
    wanted = _scaled(x, y.view(8, 16, 700))
    assert _same(tiled(_SCALED.text, [(wanted.shape, wanted.stride())], x, y), wanted)


def test_a_tensor_without_dimensions_keeps_its_rank_in_promotion() -> None:
    run = Tiles(2, (Step("aten.mul.Tensor", (A, B), (), "bfloat16"),), (0,))
    x, factor = torch.randn(9000).bfloat16(), torch.tensor(1.3)
    assert _same(tiled(run.text, [((9000,), (1,))], x, factor), x * factor)


@pytest.mark.parametrize("count", [1, 63, GRAIN - 1, GRAIN, GRAIN + 1, 3 * GRAIN + 129, 10 * GRAIN + 1])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_boxes_of_a_row_follow_one_another_and_keep_to_the_shares(count: int, threads: int) -> None:
    found = [box[0] for box in boxes((count,), threads, GRAIN * threads)]
    assert all(isinstance(s, slice) for s in found)
    pieces: list[Any] = [(s.start, s.stop) for s in found if isinstance(s, slice)]
    assert pieces[0][0] == 0
    assert pieces[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    workers = min(threads, -(-count // GRAIN)) if count > GRAIN else 1
    share = -(-count // workers)
    ends = {min(share * (i + 1), count) for i in range(workers)}
    assert ends <= {end for _, end in pieces}
    assert all((end - begin) % 64 == 0 or end in ends for begin, end in pieces)


def test_boxes_cover_every_element_once() -> None:
    for shape in ((3, 5, 7), (2, 40_000), (70_000, 3), (4, 1, 9)):
        count = torch.zeros(shape, dtype=torch.int64)
        for box in boxes(shape, 1, 1000):
            assert count[box].numel() <= 1000 or len(shape) == len(box)
            count[box] += 1
        assert bool((count == 1).all())


def test_numbers_are_passed_as_they_are_where_they_need_no_memory() -> None:
    """As on a GPU."""
    for text in (_GELU.text, _SCALED.text):
        assert not made_ready(text, None, ("float32",) * 2, False).numbers
        assert made_ready(text, None, ("float32",) * 2, True).numbers
    x = torch.randn(1000)
    result = torch.empty_like(x)
    carry_out(made_ready(_GELU.text, None, ("float32",), False), [x], [result])
    assert _same(result, _gelu(x))


def test_a_bound_may_be_missing() -> None:
    run = Tiles(1, (Step("aten.clamp.default", (A, None, 0.5), (), "float32"),), (0,))
    x = torch.randn(5000)
    assert _same(tiled(run.text, [((5000,), (1,))], x), x.clamp(max=0.5))
