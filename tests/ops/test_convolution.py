"""Convolutions' gradients one by one, in parts, and by other algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from lowtide.device.observer import observe
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Group
from lowtide.ir.numerics import Numerics
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.convolution import BACKWARD, Convolution, without_bytes
from lowtide.ops.convolution_algorithms import ConvolutionAlgorithms
from lowtide.profile.flops import flops
from tests.ops.offers import difference, offered, read_by

BESIDE = "lowtide.convolution_backward_with_input"


class _Between(nn.Module):
    """A convolution whose input is the model's own, between two tanh, so that its gradient is wanted."""

    def __init__(self, inner: nn.Module, gain: bool = True) -> None:
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.ones(1)) if gain else 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(torch.tanh(x * self.gain)))


def _frozen(inner: nn.Conv2d) -> nn.Module:
    inner.weight.requires_grad_(False)
    return inner


_CHANNELS_LAST = torch.channels_last
_CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], torch.dtype]] = {
    "3x3": (lambda: nn.Conv2d(5, 7, 3, padding=1), lambda: torch.randn(3, 5, 9, 11), torch.float32),
    "no bias": (lambda: nn.Conv2d(5, 7, 3, bias=False), lambda: torch.randn(3, 5, 9, 11), torch.float32),
    "strided 1x1": (lambda: nn.Conv2d(8, 4, 1, stride=2), lambda: torch.randn(2, 8, 10, 10), torch.float32),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8), lambda: torch.randn(2, 8, 9, 9), torch.float32),
    "grouped": (lambda: nn.Conv2d(8, 12, 3, groups=4), lambda: torch.randn(2, 8, 9, 9), torch.float32),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2), lambda: torch.randn(2, 4, 9, 9), torch.float32),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 2, stride=2), lambda: torch.randn(2, 6, 7, 7), torch.float32),
    "channels-last": (
        lambda: nn.Conv2d(5, 7, 3),
        lambda: torch.randn(3, 5, 9, 11).contiguous(memory_format=_CHANNELS_LAST),
        torch.float32,
    ),
    "one dimension": (lambda: nn.Conv1d(5, 7, 3), lambda: torch.randn(3, 5, 17), torch.float32),
    "three dimensions": (lambda: nn.Conv3d(3, 4, 2), lambda: torch.randn(2, 3, 5, 5, 5), torch.float32),
    "float64": (lambda: nn.Conv2d(5, 7, 3), lambda: torch.randn(3, 5, 9, 11), torch.float64),
    "bfloat16": (lambda: nn.Conv2d(5, 7, 3), lambda: torch.randn(3, 5, 9, 11), torch.bfloat16),
    "frozen": (lambda: _frozen(nn.Conv2d(5, 7, 3)), lambda: torch.randn(3, 5, 9, 11), torch.float32),
    "frozen, no bias": (
        lambda: _frozen(nn.Conv2d(5, 7, 3, bias=False)),
        lambda: torch.randn(3, 5, 9, 9),
        torch.float32,
    ),
}


def _groups_of(graph: Graph, op: str) -> list[Group]:
    return [g for g in graph.groups if graph.recipes[g.options[0].recipes[0]].op == op]


@pytest.mark.parametrize("case", _CASES)
def test_gradients_one_by_one_are_the_same_and_the_input_is_not_read_for_its_own(case: str) -> None:
    make, given, dtype = _CASES[case]
    graph = offered(_Between(make()).to(dtype), (given().to(dtype),), Convolution())
    (group,) = graph.groups
    (option,) = group.options[1:]
    own = graph.recipes[group.options[0].recipes[0]]
    inside = own.reads[1].value
    last = graph.recipes[option.recipes[-1]]
    assert last.op == BESIDE
    assert inside in own.read_values
    assert inside not in last.read_values
    assert {v for r in option.recipes for v in graph.recipes[r].outputs} == set(own.outputs)
    assert len(option.recipes) == (1 if "frozen" in case else 2)
    assert difference(graph, group, option) == ""


@pytest.mark.parametrize("case", ["3x3", "strided 1x1", "grouped", "transposed", "one dimension"])
def test_every_gradient_costs_what_its_share_of_the_whole_costs(case: str) -> None:
    make, given, dtype = _CASES[case]
    graph = offered(_Between(make()).to(dtype), (given().to(dtype),), Convolution())
    (group,) = graph.groups
    whole, weight, beside = (graph.recipes[r] for r in (*group.options[0].recipes, *group.options[1].recipes))
    reads = [r.geometry for r in whole.reads]
    results = [graph.values[v].geometry for v in whole.outputs]
    cost = Convolution.kernels["convolution_backward_with_input"].flops
    assert cost is not None
    assert cost(graph, beside) == flops(weight, reads, []) == flops(whole, reads, results) / 2 > 0


def test_a_first_layer_is_left_alone() -> None:
    graph = offered(nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 8, 8),), Convolution())
    assert not graph.groups


def test_what_stands_for_the_input_takes_no_memory() -> None:
    x, w = torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3)
    y = torch.ops.aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    run = Convolution.kernels["convolution_backward_with_input"].run
    for layout in (torch.contiguous_format, torch.channels_last):
        given = x.contiguous(memory_format=layout)
        gradient = y.contiguous(memory_format=layout)
        with observe("cpu") as plain:
            expected = torch.ops.aten.convolution_backward(gradient, given, w, *rest)[0]
        with observe("cpu") as seen:
            found = run(gradient, w, given.shape, given.stride(), *rest)[0]
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        assert seen.peak_B == plain.peak_B


_LARGE: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "3x3": (lambda: nn.Conv2d(16, 24, 3, padding=1), lambda: torch.randn(5, 16, 40, 40)),
    "no bias": (lambda: nn.Conv2d(16, 24, 3, bias=False), lambda: torch.randn(5, 16, 40, 40)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 3, groups=16), lambda: torch.randn(5, 16, 50, 50)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 8, 2, stride=2), lambda: torch.randn(5, 16, 40, 40)),
    "channels-last": (
        lambda: nn.Conv2d(16, 24, 3),
        lambda: torch.randn(5, 16, 40, 40).contiguous(memory_format=_CHANNELS_LAST),
    ),
    "one dimension": (lambda: nn.Conv1d(16, 24, 3), lambda: torch.randn(5, 16, 1600)),
    "three dimensions": (lambda: nn.Conv3d(4, 6, 2), lambda: torch.randn(6, 4, 18, 18, 18)),
}


@pytest.mark.parametrize("case", _LARGE)
def test_parts_and_algorithms_give_the_same_up_to_the_order_of_sums(case: str) -> None:
    make, given = _LARGE[case]
    graph = offered(_Between(make()), (given(),), Convolution(), ConvolutionAlgorithms())
    forward, backward = _groups_of(graph, "aten.convolution.default") + _groups_of(graph, BACKWARD)
    assert "in 4 parts" in [o.name for o in forward.options]
    assert {"one by one", "input's in 4 parts", "in 4 parts"} <= {o.name for o in backward.options}
    assert max(len(forward.options), len(backward.options)) <= 5
    for group in (forward, backward):
        for option in group.options[1:]:
            _holds(graph, group, option.name)


def _holds(graph: Graph, group: Group, name: str) -> None:
    """Runs an option and the program on the same numbers: close, and laid out alike."""
    option = next(o for o in group.options if o.name == name)
    found = difference(graph, group, option)
    assert not found or found.endswith("elements"), (name, found)
    if found:
        assert option.numerics is not Numerics.EXACT or "parts" in name, (name, found)


def test_products_are_not_split_and_native_ones_are_tried() -> None:
    given = torch.randn(5, 16, 40, 40)
    graph = offered(_Between(nn.Conv2d(16, 24, 1)), (given,), Convolution(), ConvolutionAlgorithms())
    assert [[o.name for o in g.options[1:]] for g in graph.groups if g.options[1].name == "one by one"] == [
        ["one by one", "native", "channels-last"]
    ]
    assert not [o.name for g in graph.groups for o in g.options if "parts" in o.name]


def test_parts_take_a_part_of_the_workspace() -> None:
    x, w = torch.randn(8, 16, 48, 48), torch.randn(16, 16, 3, 3)
    constants = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    run = ConvolutionAlgorithms.kernels["convolution_in_parts"].run
    with observe("cpu") as plain:
        expected = torch.ops.aten.convolution(x, w, *constants)
    with observe("cpu") as seen:
        found = run(x, w, *constants, 4)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert seen.peak_B - found.nbytes < (plain.peak_B - expected.nbytes) * 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_parts_are_as_accurate(dtype: torch.dtype) -> None:
    x, w = torch.randn(8, 6, 20, 20, dtype=dtype), torch.randn(5, 6, 3, 3, dtype=dtype)
    gy = torch.randn(8, 5, 18, 18, dtype=dtype)
    rest: tuple[Any, ...] = ([5], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True])
    run = ConvolutionAlgorithms.kernels["convolution_weight_in_parts"].run
    exact = torch.ops.aten.convolution_backward(gy.double(), x.double(), w.double(), *rest)
    plain = torch.ops.aten.convolution_backward(gy, x, w, *rest)
    found = run(gy, x, w, *rest, 3)
    assert found[0] is None
    for a, b, c in zip(found[1:], plain[1:], exact[1:], strict=True):
        assert (a - c).abs().max() <= 4 * (b - c).abs().max() + 1e-12


def test_settings_are_as_before_and_devices_have_their_own_algorithms() -> None:
    before = torch.backends.mkldnn.enabled
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    constants = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    run = ConvolutionAlgorithms.kernels["convolution_by"].run
    expected = torch.ops.aten.convolution(x, w, *constants)
    for candidate in ("native", "channels-last", "benchmarked", "deterministic", "without cuDNN"):
        found = run(x, w, *constants, candidate)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert found.stride() == expected.stride()
    assert torch.backends.mkldnn.enabled == before
    assert not torch.backends.cudnn.benchmark


def _on_a_gpu(graph: Graph) -> Graph:
    """The same program, as if its tensors were on a GPU."""

    def there(geometry: Geometry | None) -> Geometry | None:
        return None if geometry is None else replace(geometry, device="cuda")

    values = tuple(replace(v, geometry=there(v.geometry)) for v in graph.values)
    recipes = tuple(
        replace(r, reads=tuple(replace(x, geometry=there(x.geometry)) for x in r.reads)) for r in graph.recipes
    )
    return replace(graph, values=values, recipes=recipes)


def test_on_a_gpu_cudnn_has_its_algorithms() -> None:
    make, given = _LARGE["3x3"]
    builder = GraphBuilder(_on_a_gpu(offered(_Between(make()), (given(),))))
    Convolution().add(builder, Numerics.LOSSY)
    ConvolutionAlgorithms().add(builder, Numerics.LOSSY)
    candidates = ["benchmarked", "deterministic", "without cuDNN"]
    assert [[o.name for o in g.options] for g in builder.groups] == [
        ["program", "one by one", *candidates],
        ["program", *candidates],
    ]


def test_elsewhere_one_element_stands_for_the_input_where_the_layout_allows_it() -> None:
    like = torch.empty(2, 3, device="meta")
    plain, last = torch.empty(2, 3, 4, 5), torch.empty(2, 3, 4, 5).contiguous(memory_format=_CHANNELS_LAST)
    assert without_bytes(like, plain.shape, plain.stride()).untyped_storage().nbytes() == 4
    assert without_bytes(like, last.shape, last.stride()).stride() == last.stride()


def test_only_exact_options_are_offered_where_only_they_are_asked_for() -> None:
    make, given = _LARGE["3x3"]
    graph = offered(_Between(make()), (given(),), ConvolutionAlgorithms(), numerics=Numerics.EXACT)
    assert {o.name for g in graph.groups for o in g.options[1:]} == {"in 4 parts", "input's in 4 parts"}
    assert all(o.numerics is Numerics.EXACT for g in graph.groups for o in g.options)
    inputs = [g for g in graph.groups if graph.recipes[g.options[0].recipes[0]].op == BACKWARD]
    assert graph.recipes[inputs[0].options[0].recipes[0]].reads[1].value in read_by(graph, inputs[0].options[1].recipes)
