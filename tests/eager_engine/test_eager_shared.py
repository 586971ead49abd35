"""Bytes that others get at, storages that change under their tensors, tensors of other kinds: bits are the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lowtide
from lowtide.device import shim
from tests.eager_engine.comparison import digest

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
SIZE = 4096
BUDGET_B = 12 * SIZE * 4
Program = Callable[[Callable[[], None]], list[Tensor]]


def _press() -> None:
    """Asks for so much that most of what can be recomputed has to go."""
    made = [torch.ones(SIZE) for _ in range(7)]
    del made


def _written_by_numpy(press: Callable[[], None]) -> list[Tensor]:
    x = torch.randn(SIZE).cos()
    before = x.sin()
    array = x.numpy()
    array[:] = 7
    press()
    between = x * 2
    array[:] = 8
    press()
    return [before, between, x + torch.from_numpy(array)]


def _rolled_out(press: Callable[[], None]) -> list[Tensor]:
    """More than fits depends on what was in a buffer, one after the other."""
    observed, weight, kept = torch.zeros(SIZE // 16), torch.randn(16, SIZE // 16), []
    array = observed.numpy()
    for step in range(16):
        array[:] = step
        kept.append((observed * weight).sin())
    press()
    return [torch.stack([result.sum() for result in kept])]


def _let_go(press: Callable[[], None]) -> list[Tensor]:
    """Nobody but calls have what they read, and it is moved."""
    made = [torch.tensor([0.5 + step] * (SIZE // 2)).sin() for step in range(10)]
    del made[::2]
    torch.ones(4 * SIZE)  # slides
    torch.ones(9 * SIZE)  # evicts
    press()
    return [x * 2 for x in made]


def _written_by_another_library(press: Callable[[], None]) -> list[Tensor]:
    x = torch.randn(SIZE).cos()
    before = x.sin()
    other = torch.utils.dlpack.from_dlpack(x)
    other.add_(1)
    between = x * 3
    press()
    other.zero_()
    press()
    return [before, between, x * 1]


def _resized(press: Callable[[], None]) -> list[Tensor]:
    x = torch.randn(SIZE)
    empty, short = torch.empty(0), x[:100].sin()
    torch.mul(x, x.cos(), out=empty)
    with pytest.warns(UserWarning, match="resized"):
        torch.add(x, x, out=short)
    grown = x.cos()
    grown.resize_(SIZE + 64)[SIZE:] = 3
    press()
    doubled = grown * 2
    press()
    return [empty, short, grown, doubled]


def _inferring(press: Callable[[], None]) -> list[Tensor]:
    norm, found = nn.BatchNorm1d(64), []
    with torch.inference_mode():
        x = torch.randn(64, 64).sin()
        press()
        found += [x.t().contiguous(), x.t().reshape(-1), x.to(torch.float64), norm(x), F.dropout(x, 0.3), x @ x]
        press()
    return [*found, *norm.buffers()]


def _quantized(press: Callable[[], None]) -> list[Tensor]:
    quantized = torch.quantize_per_tensor(torch.randn(SIZE).sin(), 0.05, 10, torch.quint8)
    press()
    positive = torch.relu(quantized)
    press()
    return [quantized.dequantize(), positive.dequantize(), positive.int_repr()]


def _nested(press: Callable[[], None]) -> list[Tensor]:
    rows = torch.nested.nested_tensor([torch.randn(5, 32), torch.randn(9, 32)])
    doubled = rows * 2.0
    press()
    padded = torch.nested.to_padded_tensor(F.softmax(doubled, -1), 0.0)
    press()
    return [padded, *(row.clone() for row in doubled.unbind())]


def _other_floats(press: Callable[[], None]) -> list[Tensor]:
    torch.set_default_dtype(torch.float64)
    try:
        made = [torch.ones(99), torch.arange(SIZE) / 3, torch.randn(SIZE), torch.randn(SIZE)]
    finally:
        torch.set_default_dtype(torch.float32)
    torch.ones(9 * SIZE)  # half of them at most fit
    press()
    return made


def _coarse_floats(press: Callable[[], None]) -> list[Tensor]:
    """Where the processor multiplies in bfloat16, that is, if it was allowed to."""
    x, made = torch.randn(64, 64), []
    torch.backends.fp32_precision = "bf16"  # type: ignore[attr-defined]
    try:
        made += [x @ x, x[:60] @ x]
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
        made.append(x[:56] @ x)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]
        torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    made.append(x[:52] @ x)
    torch.ones(9 * SIZE)
    press()
    made = [y * 1 for y in made]
    torch.backends.fp32_precision = "bf16"  # type: ignore[attr-defined]
    try:
        return [*made, x @ x]
    finally:
        torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]


def _deterministic(press: Callable[[], None]) -> list[Tensor]:
    """What is not written yet is filled then."""
    torch.use_deterministic_algorithms(True)
    try:
        made = [torch.empty(SIZE) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    torch.ones(10 * SIZE)
    press()
    return [x.isnan() for x in made]


PROGRAMS = (
    _written_by_numpy,
    _rolled_out,
    _let_go,
    _written_by_another_library,
    _resized,
    _inferring,
    _quantized,
    _nested,
    _other_floats,
    _coarse_floats,
    _deterministic,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_bits_are_those_of_the_program_without_a_budget(program: Program) -> None:
    torch.manual_seed(0)
    plain = [digest(tensor) for tensor in program(_press)]
    torch.manual_seed(0)
    with lowtide.eager(BUDGET_B) as run:
        made = program(_press)
        inside = [digest(tensor) for tensor in made]
    assert inside == plain
    assert [digest(tensor) for tensor in made] == plain
    assert run.stats().evictions > 0 or program in (_quantized, _nested)


def test_a_context_that_nobody_has_any_more_takes_its_arena_along() -> None:
    context = lowtide.eager(BUDGET_B)
    with context:
        torch.ones(SIZE).sum()
    arena = weakref.ref(context.runtime.arena)
    del context
    gc.collect()
    assert arena() is None


def test_a_refusal_says_who_has_bytes_that_are_shared() -> None:
    with lowtide.eager(BUDGET_B):
        x = torch.ones(SIZE).cos()
        x.numpy()[0] = 3
        y = x * 2
        with pytest.raises(torch.OutOfMemoryError, match=r"32\.0 KiB inputs, and what"):
            torch.ones(20 * SIZE)
        assert float(y[0]) == 6
