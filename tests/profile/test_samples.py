"""Inputs made up for an operator are of the right geometry, valid, and the same every time."""

from __future__ import annotations

import pytest
import torch

from lowtide.ir.call import Arg, Items, Ref, View
from lowtide.ir.geometry import Geometry
from lowtide.profile.indices import index_bounds
from lowtide.profile.samples import samples
from lowtide.profile.signature import Signature, geometry_of, viewed
from tests.profile.programs import contiguous

LIST = Items((None, Ref(1)))
MASKED = Items((Ref(2), Ref(1)))


@pytest.mark.parametrize(
    ("op", "args", "shapes", "bounds"),
    [
        ("aten.embedding.default", (Ref(0), Ref(1)), ((100, 8), (4, 6)), {1: 100}),
        ("aten.embedding_dense_backward.default", (Ref(0), Ref(1), 50, -1, False), ((4, 6, 8), (4, 6)), {1: 50}),
        ("aten.nll_loss_forward.default", (Ref(0), Ref(1), None, 1, -100), ((9, 7), (9,)), {1: 7}),
        ("aten.nll_loss2d_forward.default", (Ref(0), Ref(1), None, 1, -100), ((2, 5, 8, 8), (2, 8, 8)), {1: 5}),
        ("aten.nll_loss_backward.default", (Ref(0), Ref(1), Ref(2)), ((), (9, 7), (9,)), {2: 7}),
        ("aten.gather.default", (Ref(0), -1, Ref(1)), ((4, 11), (4, 2)), {1: 11}),
        ("aten.scatter.src", (Ref(0), 0, Ref(1), Ref(2)), ((4, 11), (2, 11), (2, 11)), {1: 4}),
        ("aten.scatter_add.default", (Ref(0), 1, Ref(1), Ref(2)), ((4, 11), (4, 2), (4, 2)), {1: 11}),
        ("aten.index_select.default", (Ref(0), 1, Ref(1)), ((4, 11), (3,)), {1: 11}),
        ("aten.index.Tensor", (Ref(0), LIST), ((4, 11), (3,)), {1: 11}),
        ("aten.index_put.default", (Ref(0), LIST, Ref(2)), ((4, 11), (3,), ()), {1: 11}),
        ("aten.max_pool2d_with_indices_backward.default", (Ref(0), Ref(1), 2, 2, 0, 1, False, Ref(2)),
         ((1, 2, 4, 4), (1, 2, 8, 8), (1, 2, 4, 4)), {2: 64}),
        ("aten.max_unpool2d.default", (Ref(0), Ref(1), Items((8, 8))), ((1, 4, 4), (1, 4, 4)), {1: 64}),
        ("aten.one_hot.default", (Ref(0), 12), ((4,),), {0: 12}),
        ("aten.take.default", (Ref(0), Ref(1)), ((4, 11), (3,)), {1: 44}),
        ("aten.index_select_backward.default", (Ref(0), Items((4, 11)), 1, Ref(1)), ((4, 3), (3,)), {1: 11}),
        ("aten.add.Tensor", (Ref(0), Ref(1)), ((4,), (4,)), {}),
        ("aten.embedding.default", (), (), {}),
        ("embedding", (), (), {}),
    ],
)  # fmt: skip
def test_bounds(op: str, args: tuple[Arg, ...], shapes: tuple[tuple[int, ...], ...], bounds: dict[int, int]) -> None:
    assert index_bounds(op, args, [contiguous("int64", *s) for s in shapes]) == bounds


def test_a_mask_among_indices_takes_as_many_dimensions_as_it_has() -> None:
    reads = [contiguous("float32", 2, 3, 7), contiguous("int64", 4), contiguous("bool", 2, 3)]
    assert index_bounds("aten.index.Tensor", (Ref(0), MASKED), reads) == {1: 7}


@pytest.mark.parametrize(
    "geometry",
    [
        contiguous("float32", 3, 5),
        contiguous("float32"),
        contiguous("float32", 0, 4),
        contiguous("bfloat16", 70_001),
        contiguous("bool", 3, 5),
        contiguous("complex64", 4),
        contiguous("float8_e4m3fn", 16),
        Geometry("float32", (4, 6), (0, 1), 3),
        Geometry("int64", (4, 6), (1, 4)),
        Geometry("float64", (2, 2), (100, 10), 7),
    ],
)
def test_samples_have_the_geometry_and_repeat(geometry: Geometry) -> None:
    signature = Signature("aten.add.Tensor", (Ref(0),), (), (geometry,))
    (tensor,) = samples(signature)
    assert geometry_of(tensor) == geometry
    assert tensor.untyped_storage().nbytes() == geometry.extent_B
    (again,) = samples(signature)
    assert torch.equal(tensor.to(torch.complex128), again.to(torch.complex128))
    if geometry.dtype in ("float32", "float64", "bfloat16") and tensor.numel():
        assert float(tensor.min()) > 0.04
        assert float(tensor.max()) <= 1.0


def test_indices_are_valid_and_spread() -> None:
    geometry = contiguous("int64", 1000)
    signature = Signature("aten.embedding.default", (Ref(1), Ref(0)), (), (geometry, contiguous("float32", 10, 2)))
    indices, _ = samples(signature)
    assert set(indices.tolist()) == set(range(10))
    (zeros,) = samples(Signature("aten.add.Tensor", (Ref(0),), (), (geometry,)))
    assert not zeros.any()


def test_views_are_taken_without_memory() -> None:
    base = contiguous("float32", 1 << 20, 1 << 20)  # 4 TiB
    seen = viewed(base, [View("aten.t.default", (Ref(0),)), View("aten.slice.Tensor", (Ref(0), 0, 5, 9))])
    assert seen == Geometry("float32", (4, 1 << 20), (1, 1 << 20), 5)
    assert viewed(base, ()) is base
