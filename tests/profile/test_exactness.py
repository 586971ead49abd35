"""What claims to be exact is tried: next to the program's own, on inputs that fit together, once per machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn

from lowtide.ir.call import Ref
from lowtide.ir.graph import Graph, Option
from lowtide.ir.numerics import Numerics
from lowtide.ops import catalogue
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.pipeline import enlarged
from lowtide.profile.cache import ProfileCache
from lowtide.profile.exactness import Exactness
from lowtide.profile.rehearsal import Rehearsal, unlike
from lowtide.record import PlanOptions
from lowtide.units import Budget
from tests.ops.forced import Forced

RUNS: list[str] = []


def _good(x: torch.Tensor) -> torch.Tensor:
    RUNS.append("good")
    return x.tanh()


def _off(x: torch.Tensor) -> torch.Tensor:
    RUNS.append("off")
    return x.tanh() * (1.0 + 2.0**-23)


def _raising(x: torch.Tensor) -> torch.Tensor:  # noqa: ARG001  # whatever it is given
    raise RuntimeError("not for these shapes\nmore")


@dataclass(frozen=True)
class Tanh(AbstractFamily):
    """Implementations of tanh of which some do not do what they claim."""

    name: ClassVar[str] = "tanh"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[dict[str, Kernel]] = {
        "good_tanh": Kernel(_good), "off_tanh": Kernel(_off), "raising_tanh": Kernel(_raising),
    }  # fmt: skip

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # all of them claim to be exact
        for recipe in list(builder.calls("aten.tanh.default")):
            options = []
            for kernel in self.kernels:
                made = builder.recipe(recipe, f"lowtide.{kernel}", outputs=recipe.outputs, reads=recipe.reads)
                options.append(Option(kernel, (made,)))
            builder.group(self.kind, f"tanh {recipe.id}", [recipe.id], options)


class Layers(nn.Module):
    """The same function of two sizes, one of them twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.tanh(torch.tanh(x) * 2.0).sum(0) * 2.0)


@pytest.fixture(autouse=True)
def _families(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(catalogue, "FAMILIES", (Tanh(),))
    catalogue.kernels.cache_clear()
    _resolve().cache_clear()
    yield
    monkeypatch.undo()
    catalogue.kernels.cache_clear()
    _resolve().cache_clear()


def _resolve() -> Any:
    from lowtide.device.calls import resolve

    return resolve


def captured() -> Graph:
    """The program alone."""
    graph = Forced(Layers(), (torch.ones(4, 6).requires_grad_(),)).graph
    recipes = tuple(r for r in graph.recipes if not r.op.startswith("lowtide."))
    return replace(graph, recipes=recipes, groups=())


def names(graph: Graph) -> list[list[str]]:
    return [[o.name for o in g.options] for g in graph.groups]


def test_what_differs_or_cannot_run_is_left_out_where_bits_count(caplog: pytest.LogCaptureFixture) -> None:
    graph = captured()
    options = PlanOptions(budget=Budget(of_plain=1.0))
    with caplog.at_level("INFO", logger="lowtide"):
        exact = enlarged(graph, [], {}, options, Exactness())
    assert names(exact) == [["program", "good_tanh"]] * 3
    assert not any(r.op in ("lowtide.off_tanh", "lowtide.raising_tanh") for r in exact.recipes)
    assert "tanh 0: off_tanh is not exact here" in caplog.text
    assert "it cannot be tried: RuntimeError: not for these shapes" in caplog.text
    looser = PlanOptions(budget=Budget(of_plain=1.0), numerics=Numerics.REASSOCIATED)
    found = enlarged(graph, [], {}, looser, Exactness())
    assert {(o.name, o.numerics) for g in found.groups for o in g.options[1:]} == {
        ("good_tanh", Numerics.EXACT),
        ("off_tanh", Numerics.REASSOCIATED),
        ("raising_tanh", Numerics.REASSOCIATED),
    }


def test_each_kind_is_tried_once_and_remembered_on_disk(tmp_path: Path) -> None:
    graph = catalogue.enlarge(captured())
    RUNS.clear()
    first = Exactness(ProfileCache(tmp_path)).refuted(graph)
    assert RUNS.count("good") == 2  # tanh of a matrix, and of a row
    assert len(first) == 6
    RUNS.clear()
    assert Exactness(ProfileCache(tmp_path)).refuted(graph) == first
    assert RUNS == []


def test_nothing_is_remembered_from_where_numbers_are_rounded_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = catalogue.enlarge(captured())
    here = Exactness(ProfileCache(tmp_path))
    here.refuted(graph)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        RUNS.clear()
        here.refuted(graph)
        assert RUNS.count("good") == 2  # in the same session
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setenv("MKL_CBWR", "SSE4_2" if os.environ.get("MKL_CBWR") == "COMPATIBLE" else "COMPATIBLE")
    RUNS.clear()
    Exactness(ProfileCache(tmp_path)).refuted(graph)
    assert RUNS.count("good") == 2  # with the same folder


def test_a_machine_that_is_not_here_is_taken_at_its_word() -> None:
    options = PlanOptions(budget=Budget(of_plain=1.0), machine="h200")
    assert len(names(enlarged(captured(), [], {}, options, Exactness()))[0]) == 4


def test_what_is_compared_is_of_one_input() -> None:
    """ReLU's gradient from its input agrees with the one from its output only where one is the other's."""
    graph = Forced(Gate(), (torch.ones(4, 6).requires_grad_(),)).graph
    backward = next(r for r in graph.recipes if r.op == "aten.threshold_backward.default")
    relu = next(r for r in graph.recipes if r.op == "aten.relu.default")
    builder = GraphBuilder(graph)
    reads = (backward.reads[0], relu.reads[0])
    other = builder.recipe(backward, backward.op, outputs=backward.outputs, reads=reads, args=backward.args)
    rehearsal = Rehearsal(builder.finish(), (backward.id,), (other,))
    assert rehearsal.before == (relu.id,)
    assert rehearsal.difference([]) == ""
    swapped = (reads[1], reads[0])
    wrong = builder.recipe(backward, backward.op, outputs=backward.outputs, reads=swapped, args=(Ref(0), Ref(1), 0))
    assert "elements" in Rehearsal(builder.finish(), (backward.id,), (wrong,)).difference([])


class Gate(nn.Module):
    """A ReLU between two products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x * 1.5) * 2.0


def test_how_tensors_differ() -> None:
    one = torch.tensor([[1.0, float("nan")], [0.0, 2.0]])
    assert unlike(one, one.clone()) == ""
    assert unlike(one, one.t().contiguous().t()) == "strides (2, 1) and (1, 2)"
    assert unlike(one, one.double()).startswith("torch.float32")
    assert unlike(one, one + torch.tensor([[0.0, 0.0], [0.0, 1e-6]])) == "1 of 4 elements"
