"""Costs follow from names and sizes alone, and say which of two operators takes longer."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lowtide
from lowtide.api.eager import Eager
from tests.eager_engine.networks import NETWORKS
from tests.oracle.costs import Kind, cost_kind, formula_ns

_MATRIX = ((64, 64), 4)


def test_names_come_with_or_without_namespace_and_overload() -> None:
    assert {cost_kind(name) for name in ("addmm", "aten.addmm.default", "aten::addmm", "addmm_")} == {Kind.ADD_MATMUL}
    assert cost_kind("aten.relu_.default") is Kind.BYTES
    assert cost_kind("aten.sigmoid_.default") is Kind.SLOW
    assert cost_kind("aten._softmax.default") is Kind.SLOW


def test_a_product_costs_its_multiplications() -> None:
    bytes_ns = 3 * 64 * 64 * 4 // 10
    assert formula_ns("aten.mm.default", [_MATRIX, _MATRIX], [_MATRIX]) == 1000 + bytes_ns + 2 * 64**3 // 40
    assert formula_ns("aten.add.Tensor", [_MATRIX, _MATRIX], [_MATRIX]) == 1000 + bytes_ns


def test_convolutions_in_both_directions() -> None:
    x, weight, y = ((2, 8, 16, 16), 4), ((32, 8, 3, 3), 4), ((2, 32, 16, 16), 4)
    forward = 2 * (2 * 32 * 16 * 16) * (8 * 9)
    read_B = 4 * (2 * 8 * 256 + 32 * 72 + 2 * 32 * 256)
    assert formula_ns("aten.convolution.default", [x, weight], [y]) == 1000 + read_B // 10 + forward // 40
    backward = formula_ns("aten.convolution_backward.default", [y, x, weight], [x, weight, ((32,), 4)])
    assert backward - 1000 > 2 * forward // 40
    upward = ((8, 32, 2, 2), 4)  # transposed: filters along the input
    larger = ((2, 32, 32, 32), 4)
    assert formula_ns("convolution", [x, upward], [larger]) > 2 * 2 * 8 * 256 * 32 * 4 // 40


def test_a_look_up_reads_what_it_writes() -> None:
    table, rows = ((50_000, 64), 4), ((10, 64), 4)
    assert formula_ns("aten.embedding.default", [table, ((10,), 8)], [rows]) == 1000 + (2 * 2560 + 80) // 10


def test_odd_arguments_cost_something() -> None:
    for kind in ("mm", "addmm", "convolution", "convolution_backward", "mkldnn_rnn_layer", "embedding"):
        assert formula_ns(kind, [], []) == 1000
        assert formula_ns(kind, [((), 4)] * 4, [((), 4)]) >= 1000


class Reckoning(TorchDispatchMode):
    """Reckons by the formula what the engine says that each operator costs, which is nothing for views."""

    supports_higher_order_operators = True

    def __init__(self, run: Eager) -> None:
        super().__init__()
        self.run = run
        self.kinds: set[Kind] = set()
        self.different: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before_ns = self.run.stats().cost_ns
        results = func(*args, **(kwargs or {}))
        cost_ns = self.run.stats().cost_ns - before_ns
        expected_ns = formula_ns(str(func), shapes((args, kwargs)), shapes(results))
        if cost_ns:
            self.kinds.add(cost_kind(str(func)))
            if cost_ns != expected_ns:
                self.different.append((str(func), cost_ns, expected_ns))
        return results


def shapes(tree: Any) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(t.shape), t.element_size()) for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _attention() -> None:
    q, k, v = (torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    torch.baddbmm(q[0], k[0] @ k[0].mT, v[0])


def test_the_engine_reckons_by_the_same_formula() -> None:
    with lowtide.eager(2**28, policy="lru") as run, Reckoning(run) as reckoning:
        for name in ("mlp", "unet", "bilstm"):
            network = NETWORKS[name]
            module, optimizers = network.start()
            for batch in network.batches(1):
                network.step(module, optimizers, batch)
        _attention()
    assert reckoning.different == []
    assert reckoning.kinds == set(Kind)
