"""Host-resident values: they are prefetched, and are updated here or there, in the caller's own tensors."""

from __future__ import annotations

import gc

import pytest
import torch

from lowtide.device.engines import Engines
from lowtide.errors import IllegalPlan, LowtideError
from lowtide.ir.call import Read, Ref
from lowtide.ir.check import check
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Takeover, Value
from lowtide.ir.interface import Interface
from lowtide.ir.schedule import HOST, HOST_ENGINE, Boundary, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.planners.offload.waits import with_waits
from lowtide.runtime.codegen import Segment as Code
from lowtide.runtime.codegen import generate

_SIZE = 4096
_B = 4 * _SIZE
_X, _WEIGHT, _STATE, _Y, _GRADIENT, _NEW_WEIGHT, _NEW_STATE, _DOUBLE = range(8)
_GEOMETRY = Geometry("float32", (_SIZE,), (1,))


def value(number: int, name: str, role: Role = Role.ACTIVATION, **more: object) -> Value:
    return Value(number, name, _B, role, _GEOMETRY, **more)  # type: ignore[arg-type]


def recipe(number: int, op: str, reads: tuple[int, ...], output: int, **more: object) -> Recipe:
    args = (*(Ref(i) for i in range(len(reads))), *more.pop("args", ()))  # type: ignore[misc]
    trace = MiniTrace((), (None,)) if more.get("consumes") else MiniTrace((_B,), (0,))
    return Recipe(
        number,
        f"aten.{op}",
        (output,),
        tuple(Read(v) for v in reads),
        ((),),
        args,
        trace=trace,
        **more,  # type: ignore[arg-type]
    )


def graph(update: str = "add_.Tensor") -> Graph:
    """y = x * w; the gradient sin(y) updates w on the host; the state is doubled on the device."""
    base = {"persistent": True, "memory": HOST, "movable": True, "arrives": 0}
    new = {"memory": HOST, "leaves": 0}
    values = (
        value(_X, "x", Role.INPUT, arrives=0),
        value(_WEIGHT, "w", Role.PARAMETER, **base),
        value(_STATE, "s", Role.STATE, **base),
        value(_Y, "y", Role.OUTPUT, leaves=0),
        value(_GRADIENT, "g"),
        value(_NEW_WEIGHT, "w'", Role.PARAMETER, replaces=_WEIGHT, **new),
        value(_NEW_STATE, "s'", Role.STATE, replaces=_STATE, **new),
        value(_DOUBLE, "d"),
    )
    recipes = (
        recipe(0, "mul.Tensor", (_X, _WEIGHT), _Y),
        recipe(1, "sin.default", (_Y,), _GRADIENT),
        recipe(2, update, (_WEIGHT, _GRADIENT), _NEW_WEIGHT, consumes=(Takeover(_WEIGHT, 0),), engine=HOST_ENGINE),
        recipe(3, "mul_.Scalar", (_STATE,), _NEW_STATE, consumes=(Takeover(_STATE, 0),), args=(2.0,)),
        recipe(4, "add.Tensor", (_GRADIENT, _GRADIENT), _DOUBLE, engine=HOST_ENGINE),
    )
    return Graph(values, recipes, (0, 1, 4, 2, 3), (Segment("step"),), key="by hand")


def schedule(of: Graph) -> Schedule:
    """Prefetches what is needed, lets the host work concurrently with the device, and drops everything."""
    steps: list[Step] = [
        Boundary(0), Fetch(_WEIGHT, HOST), Run(0, (_Y,)), Run(1, (_GRADIENT,)), Drop(_WEIGHT), Send(_GRADIENT, HOST),
        Drop(_GRADIENT), Run(4, (_DOUBLE,)), Fetch(_STATE, HOST), Fetch(_DOUBLE, HOST), Run(2, (_NEW_WEIGHT,)),
        Drop(_DOUBLE), Drop(_DOUBLE, HOST), Run(3, (_NEW_STATE,)), Send(_NEW_STATE, HOST), Drop(_GRADIENT, HOST),
        Drop(_NEW_STATE),
    ]  # fmt: skip
    return with_waits(of, steps)


def code(of: Graph, plan: Schedule, engines: Engines | None) -> Code:
    """The step as code: x, w and s in, y and the new w and s out."""
    interface = Interface((_X, _WEIGHT, _STATE), (Read(_Y), Read(_NEW_WEIGHT), Read(_NEW_STATE)))
    (step,) = generate(of, plan, (interface,), (), torch.zeros(1, dtype=torch.int64), torch.empty(0), engines=engines)
    return step


@pytest.mark.parametrize("limit_Bps", [None, 50e6])
def test_host_resident_values_are_updated_in_place(limit_Bps: float | None) -> None:
    made = graph()
    plan = schedule(made)
    check(made, plan, 10 * _B, host_budget_B=5 * _B)
    engines = Engines(3 * _B, limit_Bps)
    step = code(made, plan, engines)
    x, w, s = torch.randn(_SIZE), torch.randn(_SIZE), torch.randn(_SIZE)
    for _ in range(3):
        y, gradient, state = x * w, torch.sin(x * w), s * 2.0
        expected = w + gradient
        found = step([x, w, s])
        assert torch.equal(found[0], y)
        assert torch.equal(w, expected)
        assert torch.equal(s, state)
        assert found[1].data_ptr() == w.data_ptr()
        assert found[2].data_ptr() == s.data_ptr()
        del found
        gc.collect()
        seen = engines.stats()
        assert (seen.host_in_use_B, seen.host_peak_B) == (0, 2 * _B)
    assert (seen.host_runs, seen.to_host.copies, seen.from_host.copies) == (6, 6, 9)
    engines.close()


def test_an_operator_that_fails_on_the_host_ends_the_step() -> None:
    made = graph("mm_that_is_not.default")
    with pytest.raises(LowtideError, match="mm_that_is_not"):
        code(made, schedule(made), Engines(3 * _B))
    made = graph("addr_.default")  # of matrices and two vectors: not of these
    engines = Engines(3 * _B)
    step = code(made, schedule(made), engines)
    x, w, s = torch.randn(_SIZE), torch.randn(_SIZE), torch.randn(_SIZE)
    before = w.clone()
    with pytest.raises(LowtideError, match="an operator on the host failed"):
        step([x, w, s])
    assert torch.equal(w, before)
    engines.drain()
    assert engines.host.failure is None


def test_moves_need_engines() -> None:
    made = graph()
    with pytest.raises(IllegalPlan, match="no copy engines"):
        code(made, schedule(made), None)
