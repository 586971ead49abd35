"""Operators that give other bits from equal inputs run once, are kept, and are named in the plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.ir.call import Ref
from lowtide.ir.graph import Effect
from lowtide.ir.schedule import Run
from lowtide.pipeline import run_once_where_not_repeated
from lowtide.profile.recording import isolation, record
from lowtide.profile.repetition import Repetition
from lowtide.profile.signature import Signature, geometry_of

_calls = [0]


@torch.library.custom_op("lowtide::unsteady_in_a_test", mutates_args=())
def unsteady(x: torch.Tensor) -> torch.Tensor:
    """Adds what depends on how often it was called, as additions in whatever order would."""
    _calls[0] += 1
    return x + _calls[0] * 2.0**-10


@unsteady.register_fake
def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


unsteady.register_autograd(lambda _, gradient: gradient)


class Net(nn.Module):
    """The cheapest value to recompute would be the unsteady one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 256), nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(torch.sin(unsteady(torch.cos(self.first(x))))))


def test_what_does_not_repeat_itself_is_kept_and_named() -> None:
    torch.manual_seed(0)
    model, batch = Net(), torch.randn(256, 32)
    lowtide.fit(model, "70% of plain", work=50)
    model(batch).mean().backward()  # which measures, too
    _calls[0] = 0
    model(batch).mean().backward()
    assert _calls == [1]
    plan = model.lowtide.plan  # type: ignore[union-attr]
    graph = plan.record.graph
    (found,) = (r for r in graph.recipes if not r.repeats)
    assert (found.op, found.effect) == ("lowtide.unsteady_in_a_test.default", Effect.OPAQUE)
    assert sum(isinstance(s, Run) and s.recipe == found.id for s in plan.record.schedule.steps) == 1
    assert plan.overhead > 0
    (row,) = (line for line in plan.explain(verbose=True).splitlines() if "not repeatable, run once" in line)
    assert "lowtide.unsteady_in_a_test" in row
    lowtide.unfit(model)


def test_nothing_else_is_changed() -> None:
    graph = lowtide.plan(nn.Linear(8, 8), args=(torch.randn(4, 8),), budget="1MiB").record.graph
    assert run_once_where_not_repeated(graph) is graph


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("aten.bernoulli.p", (64, 64)),  # from an equal generator
        ("aten.add_.Tensor", (64, 64)),  # on inputs that it overwrites
        ("aten.log.default", (64, 64)),  # NaN is equal to itself
    ],
)
def test_equal_inputs_are_put_back(op: str, shape: tuple[int, ...]) -> None:
    tensors = [torch.randn(shape)]
    geometry = geometry_of(tensors[0])
    signature = Signature(op, (), (), (geometry,), ())
    call = {
        "aten.bernoulli.p": lambda: torch.ops.aten.bernoulli.p(tensors[0], 0.5),
        "aten.add_.Tensor": lambda: torch.ops.aten.add_.Tensor(tensors[0], 1.0),
        "aten.log.default": lambda: torch.ops.aten.log.default(tensors[0]),
    }[op]
    repetition = Repetition(signature, tensors)
    for _ in range(3):
        repetition.again()
        repetition.ran(call())
    assert repetition.end()


def test_one_bit_is_seen_and_undefined_contents_are_not() -> None:
    geometry = geometry_of(torch.zeros(4))
    for op, expected in (("aten.sin.default", False), ("aten.empty_like.default", True)):
        repetition = Repetition(Signature(op, (), (), (geometry,), ()), [])
        repetition.ran(torch.tensor([1.0, 0.0]))
        repetition.ran((torch.tensor([1.0, -0.0]),))
        assert repetition.end() is expected


def test_a_measurement_says_so() -> None:
    x = torch.zeros(64)
    signature = Signature("lowtide.unsteady_in_a_test.default", (Ref(0),), (), (geometry_of(x),), ())
    with isolation():
        assert not record(signature).repeats
        assert not record(signature, once=True).repeats
