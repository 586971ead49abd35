"""Runs of elementwise operators in captured programs: what vanishes, what is read, and that no bit changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn

from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, Group
from lowtide.ops.in_place import InPlace
from lowtide.ops.pointwise import Pointwise
from lowtide.planners.implementations.choice import choose
from lowtide.profile.recording import isolation, record
from lowtide.profile.signature import Signature
from tests.ops.offers import difference, offered, read_by

Tensor = torch.Tensor


class _Chain(nn.Module):
    """A function between two linear layers, which is where such functions are."""

    def __init__(self, function: Callable[[Tensor], Tensor], out: int = 48) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 48), nn.Linear(out, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(self.before(x)))


def _gelu(x: Tensor) -> Tensor:
    """As GPT-2 writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gated(x: Tensor) -> Tensor:
    return F.silu(x) * torch.sigmoid(x * 1.5)


def _squared(x: Tensor) -> Tensor:
    return torch.relu(x) ** 2 * 0.5


def _chunked(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.relu(a) * b * 2.0


def _biased(x: Tensor) -> Tensor:
    """Tensors of other shapes among the operands: a row, a column, and a tensor without dimensions."""
    row = torch.linspace(-1, 1, 48)
    return (x * row + row[:1]) * torch.tensor(0.5) + x


def _reshaped(x: Tensor) -> Tensor:
    return (torch.tanh(x) * 2.0).view(-1, 24).sin().view(x.shape) * x


def _branched(x: Tensor) -> Tensor:
    """A sum that is needed on both sides of something that is no elementwise operator."""
    y = x + torch.exp(-x * x)
    return y * 0.5 + F.softmax(y, -1)


def _swish(x: Tensor) -> Tensor:
    """Of halves of one product, as in gated linear units."""
    a, b = x.repeat(1, 1, 3)[..., :128].chunk(2, -1) if x.dim() == 3 else x.repeat(1, 3)[..., :128].chunk(2, -1)
    return F.silu(a) * b


_SHAPES = {"rows": (256, 32), "odd": (7, 37, 32)}
_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "gelu": (_gelu, 48),
    "gated": (_gated, 48),
    "squared": (_squared, 48),
    "chunked": (_chunked, 24),
    "swish": (_swish, 64),
    "biased": (_biased, 48),
    "reshaped": (_reshaped, 48),
    "branched": (_branched, 48),
}


def _runs(graph: Graph) -> list[Group]:
    return [g for g in graph.groups if g.kind == Pointwise.kind]


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_runs_give_the_same_bits(name: str, shape: str) -> None:
    function, out = _FUNCTIONS[name]
    graph = offered(_Chain(function, out), (torch.randn(_SHAPES[shape]),), Pointwise())
    assert _runs(graph), name
    for group in _runs(graph):
        for option in group.options[1:]:
            assert difference(graph, group, option) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_low_precision_joins_where_it_computes_the_same(dtype: torch.dtype) -> None:
    graph = offered(_Chain(_gated).to(dtype), (torch.randn(200, 32, dtype=dtype),), Pointwise())
    for group in _runs(graph):
        assert difference(graph, group, group.options[1]) == ""
    assert _runs(graph)


def test_of_gelu_one_tensor_is_saved() -> None:
    graph = offered(_Chain(_gelu), (torch.randn(4, 50, 32),), Pointwise())
    (group,) = _runs(graph)
    own, (option,) = group.options[0], group.options[1:]
    assert len(own.recipes) == 19
    forward, backward = (graph.recipes[r] for r in option.recipes)
    assert (forward.segment, backward.segment) == (0, 1)
    assert len(forward.reads) == 1
    assert len(backward.reads) == 2
    assert {r.value for r in forward.reads} < {r.value for r in backward.reads}
    made = {v for r in own.recipes for v in graph.recipes[r].outputs}
    assert len(made - set(forward.outputs) - set(backward.outputs)) == 17
    assert read_by(graph, option.recipes).isdisjoint(made)


def test_the_scratch_buffer_is_as_large_as_is_said() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        graph = offered(_Chain(_gelu), (torch.randn(4, 900, 32),), Pointwise(), InPlace())
        for recipe in (r for r in graph.recipes if r.op == "lowtide.tiled"):
            reads = tuple(r.geometry for r in recipe.reads if r.geometry is not None)
            with isolation():
                found = record(Signature(recipe.op, recipe.args, recipe.kwargs, reads))
            said_B = Pointwise.kernels["tiled"].workspace_B
            assert said_B is not None
            peak_B = found.trace(recipe).peak_B
            made_B = 0 if recipe.consumes else graph.values[recipe.outputs[0]].size_B
            assert 0 <= peak_B - made_B - said_B(graph, recipe) <= 64 * 20  # numbers as tensors
    finally:
        torch.set_num_threads(threads)


def test_channels_last_and_permuted_tensors_keep_their_layout() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(_gated(self.one(x)))

    x = torch.randn(2, 3, 30, 30).contiguous(memory_format=torch.channels_last)
    graph = offered(Net().to(memory_format=torch.channels_last), (x,), Pointwise())
    assert _runs(graph)
    for group in _runs(graph):
        assert difference(graph, group, group.options[1]) == ""


def test_dropout_s_gradient_needs_no_temporary() -> None:
    graph = offered(_Chain(lambda x: F.dropout(x, 0.1) * 1.25), (torch.randn(200, 32),), Pointwise())
    groups = _runs(graph)
    assert any("native_dropout_backward" in graph.recipes[r].op for g in groups for r in g.options[0].recipes)
    for group in groups:
        assert difference(graph, group, group.options[1]) == ""


def test_a_run_ends_where_others_need_its_results_first() -> None:
    graph = offered(_Chain(_branched), (torch.randn(200, 32),), Pointwise())
    softmax = next(r for r in graph.recipes if "softmax" in r.op)
    for group in _runs(graph):
        for r in group.options[1].recipes:
            recipe = graph.recipes[r]
            after = set(softmax.outputs) & set(recipe.read_values)
            assert not (after and set(softmax.read_values) & set(recipe.outputs))


def test_small_tensors_are_left_alone() -> None:
    graph = offered(_Chain(_gelu), (torch.randn(3, 32),), Pointwise())
    assert not graph.groups


def test_a_run_may_take_over_what_dies_in_it() -> None:
    graph = offered(_Chain(_gelu), (torch.randn(4, 50, 32),), Pointwise(), InPlace())
    over = [r for r in graph.recipes if r.op == "lowtide.tiled" and r.consumes]
    assert {r.segment for r in over} == {0, 1}
    for recipe in over:
        plain = next(
            r for r in graph.recipes if r.op == "lowtide.tiled" and not r.consumes and r.outputs == recipe.outputs
        )
        option = next(o for g in graph.groups for o in g.options if plain.id in o.recipes)
        assert recipe.id not in option.recipes
        assert recipe.args == plain.args


def test_runs_that_would_wait_for_each_other_are_not_both_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def crossed(x: Tensor) -> Tensor:
        a, b = x + 1.0, x * 2.0
        return torch.cat([(a + b).softmax(-1), (a * b).softmax(-1)], -1)

    monkeypatch.setattr("lowtide.ops.runs._MOST", 2)
    graph = offered(_Chain(crossed, 96), (torch.randn(200, 32),), Pointwise())
    chosen = choose(graph, dict.fromkeys(range(len(graph.groups)), 1))
    there = {v.id for v in graph.arriving} | {v.id for v in graph.values if v.persistent}
    for r in chosen.program:
        assert there.issuperset(graph.recipes[r].read_values)
        there.update(graph.recipes[r].outputs)


def test_what_reads_a_value_of_a_run_waits_for_the_run() -> None:
    """A reordered program reads one as soon as it is made; the run makes it with its last."""

    def late(x: Tensor) -> Tensor:
        a = x * 2.0
        b = (x.softmax(-1) * 3.0 + a).exp()
        return b.softmax(-1) + torch.zeros_like(a) @ b.t() @ a

    graph = offered(_Chain(late), (torch.randn(200, 32),), Pointwise())
    group = next(i for i, g in enumerate(graph.groups) if len(g.options[0].recipes) > 1)
    reader = next(r.id for r in graph.recipes if "zeros_like" in r.op)
    maker = next(r for r in graph.program if set(graph.recipes[reader].read_values) & set(graph.recipes[r].outputs))
    rest = [r for r in graph.program if r != reader]
    early = [*rest[: rest.index(maker) + 1], reader, *rest[rest.index(maker) + 1 :]]
    chosen = choose(replace(graph, program=tuple(early)), {group: 1})
    check_graph(chosen)
