"""Operators are traced as the kernels that eager runs, where torch's own capture takes arithmetic in Python."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._decomp import decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide
from lowtide.device.python_kernels import _extents_of_1_count, composites_traced_as_eager, python_kernels
from tests.capture.operators import operators_of_plain, operators_of_program
from tests.networks import differences, train, twin

Products = list[tuple[str, list[torch.Size]]]
_PRODUCTS = {"mm", "bmm", "mv", "dot"}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Mixture(nn.Module):
    """Operators of which torch has a second implementation in Python, or which Dynamo writes as others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 12))
        self.register_buffer("fixed", torch.rand(5, 7))
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x @ self.weight
        loss = F.multi_margin_loss(h, y) + F.softshrink(h, 0.3).square().mean() + F.hardshrink(h).sum() / 7
        loss = loss + torch.addcdiv(h, h.tanh(), h.exp() + 1, value=0.3).square().mean()
        # 4 x 1 x 3 x 5, not one matrix in memory: eager takes a product for each
        folded = h.repeat(1, 10).reshape(4, 3, 1, 40)[..., :5].transpose(1, 2) @ self.fixed
        loss = loss + folded.square().mean()
        spectrum = torch.stft(h.repeat(1, 24), 64, 16, window=self.window, return_complex=True)
        return loss + torch.istft(spectrum * 1.5, 64, 16, window=self.window).square().mean()


def test_training_is_unchanged_and_runs_the_operators_of_eager() -> None:
    torch.manual_seed(0)
    plain = Mixture()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=200)
    batches = [(torch.randn(4, 6), torch.randint(0, 12, (4,))) for _ in range(2)]
    expected = train(plain, lambda m, b: m(*b), batches)
    assert differences(expected, train(fitted, lambda m, b: m(*b), batches)) == []
    ran = operators_of_plain(lambda: plain(*batches[0]))
    captured = operators_of_program(fitted.lowtide.plan.record.graph)
    assert {name for name, _ in ran} >= {"multi_margin_loss", "softshrink", "addcdiv", "unfold_backward", "_fft_c2r"}
    assert captured == ran


def test_products_of_matrices_are_those_of_eager() -> None:
    """torch's rule in Python for `matmul` passes over extents of 1, and then takes another product than eager."""
    eager = _products_of_eager()
    assert {name for _, _, products in eager for name, _ in products} == _PRODUCTS
    wrong = []
    with composites_traced_as_eager(), enable_python_dispatcher():
        for a, b, expected in eager:
            with _Products() as found:
                torch.matmul(a, b)
            if found.names != expected:
                wrong.append((a.shape, a.stride(), b.shape, b.stride(), a.requires_grad, b.requires_grad))
    assert wrong == []


def test_the_rule_for_products_is_found_inside_a_mode_too() -> None:
    """In a mode autograd says nothing, or `matmul` takes other products than eager does without."""
    rows, matrix = torch.empty_strided((2, 1, 2), (2, 8, 1)), torch.zeros(2, 2)
    answers = []
    for mode in (contextlib.nullcontext, torch.no_grad, FakeTensorMode, enable_python_dispatcher):
        _extents_of_1_count.cache_clear()
        with mode(), composites_traced_as_eager():
            answers.append(decompositions.should_fold(rows, matrix, False))
    assert len(set(answers)) == 1


def test_a_check_of_values_does_not_end_a_capture() -> None:
    """`istft` asks whether its windows leave a gap, before it divides by their sum."""

    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.register_buffer("window", torch.hann_window(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.istft(x * self.scale, 16, 4, window=self.window).square().mean()

    plain = Inverse()
    fitted = lowtide.fit(twin(plain), budget="1 MiB", work=50)
    batches = [torch.view_as_complex(torch.randn(2, 9, 8, 2)) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []
    assert fitted.lowtide.plan.record.graphs == 1


def test_torch_is_left_as_it_was() -> None:
    before = [(op, dict(op.py_kernels)) for op in python_kernels()]
    assert before
    with composites_traced_as_eager():
        pass
    assert [(op, dict(op.py_kernels)) for op, _ in before] == before


class _Products(TorchDispatchMode):
    """Lists the products of matrices that run, with their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Products = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func._schema.name.partition("::")[2]
        if name in _PRODUCTS:
            self.names.append((name, [x.shape for x in args]))
        return func(*args, **(kwargs or {}))


def _products_of_eager() -> list[tuple[torch.Tensor, torch.Tensor, Products]]:
    """What `matmul` of every two operands runs: from the profiler, since eager decides otherwise inside a mode."""
    pairs = []
    for left, right in itertools.product(_operands(), _operands()):
        with contextlib.suppress(RuntimeError):  # shapes that do not fit
            torch.matmul(left, right)
            for grads in itertools.product((False, True), repeat=2):
                pairs.append([x.detach().requires_grad_(g) for x, g in zip((left, right), grads, strict=True)])
    # Its first session in a process would announce itself on stderr, and every later one too.
    with mock.patch.dict(os.environ, {"KINETO_LOG_LEVEL": "6"}), profile(record_shapes=True) as log:
        for a, b in pairs:
            torch.matmul(a, b)
    calls = [event for event in log.function_events if event.name == "aten::matmul"]
    products: list[Products] = []
    for call in calls:
        inside = [(e.name.partition("::")[2], [torch.Size(s) for s in e.input_shapes]) for e in call.cpu_children]
        products.append([(name, sizes) for name, sizes in inside if name in _PRODUCTS])
    return [(a, b, found) for (a, b), found in zip(pairs, products, strict=True)]


def _operands() -> Iterator[torch.Tensor]:
    """Tensors of one to four extents, transposed and expanded as well."""
    for shape in (
        (2,),
        (1,),
        (2, 2),
        (1, 2),
        (3, 1, 2),
        (1, 2, 2),
        (3, 2, 1),
        (2, 1, 2, 2),
        (1, 3, 1, 2),
        (2, 3, 2, 1),
    ):
        x = torch.zeros(shape)
        yield x
        if len(shape) > 2:
            yield x.transpose(-2, -3)
        if len(shape) > 1:
            yield x.mT
            yield x[:1].expand(2, *shape[1:])
