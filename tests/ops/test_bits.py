"""One bit per element: the answers that torch's own backwards find, for every element there is, in any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from lowtide.ir.geometry import Geometry
from lowtide.ops import bits
from lowtide.ops.dropout import scaled_gradient_by_flags
from lowtide.ops.memory_order import dense_order, follows

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 3.0, -3.0, 6.0, 0.1, -0.1, 0.10009765625])
SHAPES = ((), (1,), (0, 4), (7,), (8,), (65,), (3, 5, 7), (2, 3, 5, 5), (131, 1003))
Make = Callable[[torch.Tensor, torch.Tensor, tuple[int, ...]], torch.Tensor]


def special(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of which many are at a bound, and some are none."""
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=dice) * 4
    chosen = SPECIAL[torch.randint(len(SPECIAL), shape, generator=dice)]
    return torch.where(torch.rand(shape, generator=dice) < 0.4, chosen, x).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, NaN for NaN, at the same places."""
    nan = a.isnan()
    numbers = INTEGERS[a.element_size()]
    alike = torch.equal(a.contiguous().view(numbers)[~nan], b.contiguous().view(numbers)[~nan])
    return alike and torch.equal(nan, b.isnan()) and a.stride() == b.stride() and a.dtype == b.dtype


def order_of(x: torch.Tensor) -> tuple[int, ...]:
    """The order of a dense tensor."""
    order = dense_order(Geometry(str(x.dtype).removeprefix("torch."), tuple(x.shape), x.stride()))
    assert order is not None
    return order


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same elements in several places."""
    yield x
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)
    if x.dim() == 3:
        yield x.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def gradients(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Gradients that lie as a saved value does, and otherwise."""
    g = special(tuple(x.shape), x.dtype, 2)
    like = torch.empty_like(x).copy_(g)
    yield like
    yield g
    yield torch.stack([g, g], -1)[..., 0]
    if g.numel() > 1:
        yield g.flatten()[:1].expand(g.shape)


def answered(question: str, low: float, high: float, kernel: str, factors: tuple[float, ...], as_saved: bool) -> Make:
    """A gradient from packed answers."""

    def make(g: torch.Tensor, x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        packed = bits.pack_answers(x, question, low, high, order)
        assert packed.numel() == bits.packed_B(x.numel())
        result = getattr(bits, kernel)(g, packed, *factors, order, as_saved)
        assert isinstance(result, torch.Tensor)
        return result

    return make


BACKWARDS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], Make]] = {
    "relu": (
        lambda g, x: aten.threshold_backward(g, x, 0),
        answered("above", 0.0, 0.0, "masked_gradient", (), as_saved=True),
    ),
    "threshold": (
        lambda g, x: aten.threshold_backward(g, x, 0.1),
        answered("above", 0.1, 0.0, "masked_gradient", (), as_saved=True),
    ),
    "leaky": (
        lambda g, x: aten.leaky_relu_backward(g, x, 0.01, False),
        answered("greater", 0.0, 0.0, "scaled_gradient", (1.0, 0.01), as_saved=True),
    ),
    "leaky and falling": (
        lambda g, x: aten.leaky_relu_backward(g, x, -0.3, False),
        answered("greater", 0.0, 0.0, "scaled_gradient", (1.0, -0.3), as_saved=True),
    ),
    "hardtanh": (  # torch lets a NaN through in what its vectors leave over, and stops it elsewhere
        lambda g, x: aten.hardtanh_backward(g, x.nan_to_num(), -0.1, 6.0),
        lambda g, x, order: answered("within", -0.1, 6.0, "masked_gradient", (), as_saved=False)(
            g, x.nan_to_num(), order
        ),
    ),
    "hardsigmoid": (
        aten.hardsigmoid_backward,
        answered("within", -3.0, 3.0, "masked_scaled_gradient", (0.1666666716337204,), as_saved=False),
    ),
}


@pytest.mark.parametrize("by_torch", [False, True], ids=["core", "torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BACKWARDS)
def test_gradients_have_the_bits_of_torchs(
    name: str, dtype: torch.dtype, by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_torch:
        monkeypatch.setattr(bits, "float_code", lambda tensor: None)  # noqa: ARG005
        monkeypatch.setattr(bits, "PIECE", 1024)
    backward, own = BACKWARDS[name]
    for shape in SHAPES:
        for x in layouts(special(shape, dtype, 1)):
            for g in gradients(x):
                assert same(backward(g, x), own(g, x, order_of(x))), (shape, x.stride(), g.stride())


@pytest.mark.parametrize("kernel", ["masked_gradient", "scaled_gradient", "masked_scaled_gradient"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gradient_may_be_written_over(kernel: str, dtype: torch.dtype) -> None:
    factors = {"masked_gradient": (), "scaled_gradient": (0.7, -2.0), "masked_scaled_gradient": (0.3,)}[kernel]
    for x in layouts(special((2, 3, 7, 5), dtype, 3)):
        order = order_of(x)
        packed = bits.pack_answers(x, "above", 0.0, 0.0, order)
        for g in gradients(x):
            if 0 in g.stride():
                continue
            expected = getattr(bits, kernel)(g, packed, *factors, order, False)
            over = g.clone()
            got = getattr(bits, kernel)(over, packed, *factors, order, False, out=over)
            assert got is over
            assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flags_survive_packing_and_scale_what_they_are_told_to(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        flags = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.6
        order = tuple(range(len(shape)))
        packed = bits.pack_flags(flags, order)
        assert torch.equal(bits.unpacked_by_torch(packed, 0, flags.numel()), flags.flatten())
        g = special(shape, dtype, 5)
        expected = g * torch.where(flags, torch.tensor(1.25, dtype=dtype), torch.tensor(0.0, dtype=dtype))
        assert same(bits.scaled_gradient(g, packed, 1.25, 0.0, order, False), expected)
        assert same(scaled_gradient_by_flags(g, flags, 1.25, 0.0, order, False), expected)


def test_nothing_is_allocated_besides_the_results() -> None:
    from lowtide.device.observer import observe

    x = torch.randn(64, 33, 17)
    order = (0, 1, 2)
    packed = bits.pack_answers(x, "above", 0.0, 0.0, order)
    with observe() as seen:
        bits.pack_answers(x, "above", 0.0, 0.0, order)
        bits.masked_gradient(x, packed, order)
    sizes_B = [e.size_B for e in seen.events if e.size_B > 0]
    assert max(sizes_B) <= x.numel() * 4
    assert sum(1 for s in sizes_B if s >= packed.numel()) <= 2


def test_orders_say_how_elements_lie() -> None:
    image = Geometry("float32", (2, 3, 5, 7), (105, 1, 21, 3))
    assert dense_order(image) == (0, 2, 3, 1)
    assert follows(image, (0, 2, 3, 1))
    assert not follows(image, (0, 1, 2, 3))
    assert dense_order(Geometry("float32", (2, 3), (6, 2))) is None
    assert dense_order(Geometry("float32", (2, 3), (0, 1))) is None
    assert dense_order(None) is None
