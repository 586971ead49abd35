"""Costs follow from names and sizes alone, and say which of two operators takes longer."""

from pathlib import Path

import pytest

from lowtide.eager_engine.costs import CostTable, Kind, cost_kind, formula_ns, read_costs, signature, write_costs
from lowtide.errors import PlanFileError

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


def test_convolutions_both_ways() -> None:
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


def test_a_table_takes_the_place_of_the_formula(tmp_path: Path) -> None:
    table = CostTable({signature("aten.mm.default", [_MATRIX, _MATRIX]): 7})
    write_costs(table, tmp_path / "costs.json")
    again = read_costs(tmp_path / "costs.json")
    assert again.cost_ns("aten.mm.default", [_MATRIX, _MATRIX], [_MATRIX]) == 7
    assert again.cost_ns("aten.add.Tensor", [_MATRIX], [_MATRIX]) == formula_ns("aten.add.Tensor", [_MATRIX], [_MATRIX])
    (tmp_path / "costs.json").write_text("[]")
    with pytest.raises(PlanFileError, match="no table of costs"):
        read_costs(tmp_path / "costs.json")
