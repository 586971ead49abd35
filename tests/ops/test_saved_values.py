"""What families that save less find in captured graphs, what they leave alone, and how few bytes then cross."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lowtide.api.captured_graph import captured_graph
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.planners.implementations.choice import choose
from tests.ops.examples import Call

ELEMENTS = 4 * 6 * 16 * 16


def graph_of(function: Callable[..., Any], numerics: Numerics = Numerics.EXACT) -> Graph:
    """A captured step with the options of its families."""
    x = torch.randn(4, 6, 16, 16, requires_grad=True)
    graph = captured_graph(Call(function), (x,), machine="a100", numerics=numerics)
    check_graph(graph)
    return graph


def options(graph: Graph, family: str) -> dict[str, tuple[int, int]]:
    """The options of a family's groups by name: group and place."""
    mine = [(g, group) for g, group in enumerate(graph.groups) if group.name.startswith(f"{family} ")]
    return {o.name: (g, k) for g, group in mine for k, o in enumerate(group.options) if k}


def crossing_B(graph: Graph) -> int:
    """Bytes that the program's forward hands to its backward: of what is neither there anyway nor the caller's."""
    made = {v for r in graph.program if graph.recipes[r].segment == 0 for v in graph.recipes[r].outputs}
    read = {v for r in graph.program if graph.recipes[r].segment == 1 for v in graph.recipes[r].read_values}
    return sum(graph.values[v].size_B for v in made & read)


@pytest.mark.parametrize(
    ("function", "family", "option", "program_B", "option_B"),
    [
        (lambda x: F.relu(x * 1.5) * 2.0, "activations", "from bits", 4 * ELEMENTS, ELEMENTS // 8),
        (lambda x: F.relu6(x * 1.5, inplace=True) * 2.0, "activations", "from bits", 4 * ELEMENTS, ELEMENTS // 8),
        (lambda x: F.dropout(x * 1.5, 0.5) * 2.0, "dropout", "from bits", ELEMENTS, ELEMENTS // 8),
        (
            lambda x: F.max_pool2d(x * 1.5, 2) * 2.0,
            "pooling",
            "from packed indices",
            4 * ELEMENTS + 8 * ELEMENTS // 4,
            ELEMENTS // 16,
        ),
        (
            lambda x: F.max_pool2d(x * 1.5, 3, 2, 1) * 2.0,
            "pooling",
            "packed at once",
            4 * ELEMENTS + 8 * ELEMENTS // 4,
            ELEMENTS // 8,
        ),
        (lambda x: F.avg_pool2d(x * 1.5, 2) * 2.0, "stand-ins", "without input", 4 * ELEMENTS, 0),
        (lambda x: (x * 1.5).clamp(0.1, 0.9) * 2.0, "flags", "tested early", 4 * ELEMENTS, ELEMENTS // 8),
    ],
    ids=["relu", "relu6 in place", "dropout", "pooling", "pooling at once", "average pooling", "clamp"],
)
def test_less_crosses(function: Callable[..., Any], family: str, option: str, program_B: int, option_B: int) -> None:
    graph = graph_of(function)
    assert crossing_B(graph) == program_B
    group, place = options(graph, family)[option]
    chosen = choose(graph, {group: place})
    check_graph(chosen)
    assert crossing_B(chosen) == option_B


def test_bytes_cross_where_lossy_is_asked_for() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x * 1.5).sum()

    assert not options(graph_of(function), "compression")
    graph = graph_of(function, Numerics.LOSSY)
    ((group, place),) = options(graph, "compression").values()
    assert crossing_B(choose(graph, {group: place})) == ELEMENTS + ELEMENTS // 256 * 4


def test_a_copy_that_only_the_backward_reads_goes() -> None:
    graph = graph_of(lambda x: F.hardtanh(x * 1.5, inplace=True) * 2.0)
    assert set(options(graph, "activations")) == {"without a copy", "from output", "from bits"}
    group, place = options(graph, "activations")["without a copy"]
    clones = [
        [graph.recipes[r].op for r in g.program].count("aten.clone.default")
        for g in (graph, choose(graph, {group: place}))
    ]
    assert clones[0] == clones[1] + 1


def test_what_the_caller_gets_is_not_read_in_its_hands() -> None:
    assert "from output" in options(graph_of(lambda x: F.hardtanh(x * 1.5) * 2.0), "activations")
    assert "from output" not in options(graph_of(lambda x: F.hardtanh(x * 1.5)), "activations")


@pytest.mark.parametrize("bound", [0.1, 1.0])
def test_short_floats_are_told_from_rounded_bounds(bound: float) -> None:
    """An output at a bound of 0.1 in bfloat16 is above 0.1: the backward would take it for one inside."""
    x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)
    graph = captured_graph(Call(lambda x: F.hardtanh(x * 1.5, -1.0, bound) * 2.0), (x,), machine="a100")
    assert ("from output" in options(graph, "activations")) == (bound == 1.0)


def test_indices_that_the_caller_wants_are_made() -> None:
    graph = graph_of(lambda x: F.max_pool2d(x * 1.5, 2, return_indices=True))
    assert set(options(graph, "pooling")) == {"from indices", "from packed indices"}


def test_truth_that_the_forward_makes_crosses_as_bits() -> None:
    graph = graph_of(lambda x: (x * 1.5).masked_fill(x * 1.5 > 0.2, -1.0) * 2.0)
    assert set(options(graph, "flags")) == {"from bits"}
