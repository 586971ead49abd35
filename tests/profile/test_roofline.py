"""Predictions for machines that are not here: sane, and made without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lowtide.errors import LowtideError
from lowtide.ir.call import Items, Read, Ref
from lowtide.ir.check_graph import check_graph
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, Recipe, Role, Segment, Takeover, Value
from lowtide.ir.machine import Machine
from lowtide.ir.text import dumps
from lowtide.profile.flops import flops
from lowtide.profile.machines import MACHINES, load_machine
from lowtide.profile.roofline import predict_graph, replayed
from tests.profile.programs import contiguous

H200 = MACHINES["h200"]


def one(op: str, *args: object, reads: tuple[Geometry, ...], outputs: tuple[Geometry, ...]) -> Graph:
    """A graph of one recipe."""
    values = [
        Value(
            i, f"v{i}", g.extent_B, Role.INPUT if i < len(reads) else Role.ACTIVATION, g, 0 if i < len(reads) else None
        )
        for i, g in enumerate((*reads, *outputs))
    ]
    recipe = Recipe(
        0, op, tuple(range(len(reads), len(values))), tuple(Read(i, (), g) for i, g in enumerate(reads)),
        args=args or tuple(Ref(i) for i in range(len(reads))),
    )  # fmt: skip
    return Graph(tuple(values), (recipe,), (0,), (Segment("all"),))


def work(graph: Graph) -> float:
    recipe = graph.recipes[0]
    return flops(recipe, [r.geometry for r in recipe.reads], [graph.values[v].geometry for v in recipe.outputs])


def square(n: int, dtype: str = "float32") -> Geometry:
    return contiguous(dtype, n, n)


def test_a_large_product_takes_its_arithmetic() -> None:
    for dtype in ("float32", "bfloat16"):
        n = 8192
        graph = one("aten.mm.default", reads=(square(n, dtype), square(n, dtype)), outputs=(square(n, dtype),))
        predicted = predict_graph(graph, H200)
        assert predicted.recipes[0].time_s == pytest.approx(2 * n**3 / H200.flops[dtype])
        assert predicted.recipes[0].trace.events == (graph.values[2].size_B,)
        check_graph(predicted)


def test_a_card_without_matrix_units_gains_nothing_from_bfloat16() -> None:
    p100 = load_machine("P100")
    assert p100.memories[0].capacity_B == 16 * 10**9
    n, times_s = 8192, []
    for dtype in ("float32", "bfloat16"):
        graph = one("aten.mm.default", reads=(square(n, dtype), square(n, dtype)), outputs=(square(n, dtype),))
        times_s.append(predict_graph(graph, p100).recipes[0].time_s)
    assert times_s[0] == times_s[1] == pytest.approx(2 * n**3 / 9.3e12)


def test_a_pointwise_operator_takes_its_traffic() -> None:
    graph = predict_graph(one("aten.relu.default", reads=(square(8192),), outputs=(square(8192),)), H200)
    assert graph.recipes[0].time_s == pytest.approx(2 * 4 * 8192**2 / H200.traffic_Bps)


def test_a_tiny_operator_takes_a_launch() -> None:
    graph = predict_graph(one("aten.relu.default", reads=(square(2),), outputs=(square(2),)), H200)
    assert graph.recipes[0].time_s == H200.launch_s


def test_an_expanded_input_and_a_lookup_touch_few_bytes() -> None:
    expanded = Geometry("float32", (4096, 4096), (0, 1))
    cheap = predict_graph(one("aten.neg.default", reads=(expanded,), outputs=(square(4096),)), H200)
    full = predict_graph(one("aten.neg.default", reads=(square(4096),), outputs=(square(4096),)), H200)
    assert cheap.recipes[0].time_s < full.recipes[0].time_s
    table, tokens = contiguous("float32", 10**7, 64), contiguous("int64", 16)
    lookup = one("aten.embedding.default", reads=(table, tokens), outputs=(contiguous("float32", 16, 64),))
    assert predict_graph(lookup, H200).recipes[0].time_s == H200.launch_s


def test_arithmetic_of_the_families() -> None:
    image, weight, result = (
        contiguous("float32", 2, 3, 8, 8),
        contiguous("float32", 16, 3, 3, 3),
        contiguous("float32", 2, 16, 8, 8),
    )
    rest = (Items((1, 1)), Items((1, 1)), Items((1, 1)), False, Items((0, 0)), 1)
    forward = one("aten.convolution.default", Ref(0), Ref(1), None, *rest, reads=(image, weight), outputs=(result,))
    assert work(forward) == 2 * 2 * 64 * 16 * 27
    both = one(
        "aten.convolution_backward.default", Ref(0), Ref(1), Ref(2), None, *rest, Items((True, True, False)),
        reads=(result, image, weight), outputs=(image, weight),
    )  # fmt: skip
    assert work(both) == 2 * work(forward)
    turned = (*rest[:3], True, *rest[4:])
    up = one("aten.convolution.default", Ref(0), Ref(1), None, *turned, reads=(result, weight), outputs=(image,))
    assert work(up) == work(forward)
    q = contiguous("float32", 2, 4, 100, 16)
    flash = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    full = one(flash, Ref(0), Ref(1), Ref(2), 0.0, False, reads=(q, q, q), outputs=(q,))
    causal = one(flash, Ref(0), Ref(1), Ref(2), 0.0, True, reads=(q, q, q), outputs=(q,))
    assert work(full) == 2 * 2 * 8 * 100 * 100 * 16
    assert work(causal) == work(full) / 2
    assert work(one("aten.addmm.default", reads=(square(4), square(4), square(4)), outputs=(square(4),))) == 128
    assert work(one("aten.bmm.default", reads=(contiguous("float32", 2, 4, 8), contiguous("float32", 2, 8, 5)),
                    outputs=(contiguous("float32", 2, 4, 5),))) == 2 * 2 * 4 * 8 * 5  # fmt: skip
    assert work(one("aten.relu.default", reads=(square(4),), outputs=(square(4),))) == 0
    assert work(one("aten.addmm.default", Ref(0), reads=(square(4),), outputs=(square(4),))) == 0


def test_an_overwriting_recipe_allocates_nothing() -> None:
    graph = one("aten.relu_.default", reads=(square(4),), outputs=(square(4),))
    recipe = msgspec.structs.replace(graph.recipes[0], consumes=(Takeover(0, 0),))
    predicted = predict_graph(msgspec.structs.replace(graph, recipes=(recipe,)), H200)
    assert predicted.recipes[0].trace.events == ()
    check_graph(predicted)


def test_a_replay_repeats_the_recipe_of_its_own_operator() -> None:
    """Another option may save the same state of the generator."""
    values = tuple(Value(i, f"v{i}", 64, Role.ACTIVATION, square(4)) for i in range(2))
    state = Value(2, "state", 16, Role.GENERATOR)
    first, other = (
        Recipe(i, f"aten.{name}.default", (i, 2), paths=((),), effect=Effect.RANDOM, state=2)
        for i, name in enumerate(("dropout", "mask"))
    )
    again = Recipe(2, other.op, (1,), paths=((),), state=2)
    graph = Graph((*values, state), (first, other, again), (0,), (Segment("all"),))
    assert replayed(graph, again) == other.id


def test_machines_by_name_and_file(tmp_path: Path) -> None:
    assert load_machine("h200") is H200
    assert {"h200", "h100", "a100", "rtx4090"} <= set(MACHINES)
    for machine in MACHINES.values():
        assert machine.traffic_Bps > 0
        assert machine.flops["float32"] > 0
    mine = Machine("mine", flops={"float32": 1.0}, traffic_Bps=1.0)
    (tmp_path / "mine.json").write_text(dumps(mine))
    assert load_machine(str(tmp_path / "mine.json")) == mine
    with pytest.raises(LowtideError, match="h200"):
        load_machine("h300")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(LowtideError, match=r"bad\.json"):
        load_machine(str(tmp_path / "bad.json"))


def test_a_machine_without_figures_is_refused() -> None:
    graph = one("aten.relu.default", reads=(square(4),), outputs=(square(4),))
    with pytest.raises(LowtideError, match="traffic_Bps"):
        predict_graph(graph, Machine("bare"))


def test_prediction_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from lowtide.profile.machines import load_machine\n"
        "from lowtide.profile.roofline import predict_graph\n"
        "from lowtide.ir.graph import *\n"
        "values = (Value(0, 'x', 4, Role.INPUT, arrives=0), Value(1, 'y', 4, Role.ACTIVATION))\n"
        "graph = Graph(values, (Recipe(0, 'aten.relu.default', (1,)),), (0,), (Segment('all'),))\n"
        "assert predict_graph(graph, load_machine('a100')).recipes[0].time_s > 0\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
