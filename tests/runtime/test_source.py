"""Generated source has no text of a graph in it, whatever the names are: they come from models and files."""

from __future__ import annotations

import builtins
import linecache
from typing import Any

import pytest
import torch

from lowtide.device.calls import resolve
from lowtide.errors import UnsupportedOperator
from lowtide.ir.call import Arg, NamedArg, Read, Ref, View
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, MiniTrace, Origin, Recipe, Role, Segment, Value
from lowtide.ir.interface import Interface
from lowtide.ir.schedule import Boundary, Run, Schedule
from lowtide.runtime.codegen import Segment as Code
from lowtide.runtime.codegen import generate

_EVIL = 'x\'"): pass\nimport os; os.abort()\n"""\x00\\'


def _generated(args: tuple[Arg, ...], kwargs: tuple[NamedArg, ...] = (), op: str = "aten.add.Tensor") -> Code:
    """Code for one operator on one tensor, in a graph of which every name is meant to do harm."""
    geometry = Geometry("float32", (2, 2), (2, 1), device="cpu")
    values = (
        Value(0, _EVIL, 16, Role.INPUT, geometry, arrives=0, persistent=True),
        Value(1, _EVIL, 16, Role.OUTPUT, geometry, leaves=0),
    )
    view = View("aten.transpose.int", (Ref(0), 0, 1))
    trace = MiniTrace((16,), (0,))
    origin = Origin(_EVIL, _EVIL, _EVIL)
    reads = (Read(0, (view,), geometry),)
    recipe = Recipe(0, op, (1,), reads, ((),), args, kwargs, trace=trace, origin=origin)
    graph = Graph(values, (recipe,), (0,), (Segment(_EVIL),), name=_EVIL, key=_EVIL)
    schedule = Schedule((Boundary(0), Run(0, (1,))))
    interface = Interface((0,), (Read(1),))
    (code,) = generate(graph, schedule, (interface,), (), torch.zeros(1), torch.empty(0))
    return code


def _source(code: Any) -> str:
    return "".join(linecache.getlines(code.__code__.co_filename))


def test_names_and_strings_are_objects() -> None:
    code = _generated((Ref(0), 2.5), (("alpha", 3),))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(code([x])[0], x.t() + 7.5)
    source = _source(code)
    assert "import" not in source
    assert "alpha" not in source
    assert code.__code__.co_filename.isprintable()  # type: ignore[attr-defined]


@pytest.mark.parametrize("keyword", [f"**{{{_EVIL}}}, alpha", "__import__('os').abort()", "from"])
def test_a_keyword_is_a_keyword(keyword: str) -> None:
    code = _generated((Ref(0), 1), ((keyword, 1),))
    with pytest.raises((TypeError, RuntimeError)):
        code([torch.ones(2, 2)])


def test_a_string_is_a_string() -> None:
    code = _generated((Ref(0),), (("approximate", f"tanh') or {_EVIL}"),), op="aten.gelu.default")
    with pytest.raises(RuntimeError, match="approximate"):
        code([torch.ones(2, 2)])
    code = _generated((Ref(0),), (("approximate", "tanh"),), op="aten.gelu.default")
    x = torch.randn(2, 2)
    assert torch.equal(code([x])[0], torch.nn.functional.gelu(x.t(), approximate="tanh"))


@pytest.mark.parametrize(
    "op",
    [
        "operator.attrgetter", "operator.methodcaller", "operator.call", "operator.setitem", "operator.itemgetter",
        "math.factorial", "math.comb", "builtins.exec", "builtins.open", "torch.load",
        "aten.from_file.default", "aten.set_.source_Storage", "aten.as_strided_.default", "aten.resize_.default",
        "aten.set_data.default", "aten._print.default", "aten.t_.default", "prim.device.default",
        "c10d.broadcast_.default", "profiler._record_function_enter_new.default",
        "higher_order.print", "higher_order.call_torchbind", "higher_order.run_const_graph", "higher_order.__class__",
        "higher_order.executorch_call_delegate",
    ],
)  # fmt: skip
def test_what_no_capture_has_is_no_operator(op: str) -> None:
    with pytest.raises(UnsupportedOperator, match="that a captured program can have"):
        resolve(op)


def test_what_captures_have_is_found() -> None:
    for op in ("operator.add", "operator.getitem", "math.floor", "builtins.max", "torch.sym_max"):
        module, name = op.split(".")
        assert resolve(op) is getattr({"builtins": builtins, "torch": torch}.get(module) or __import__(module), name)
    for op in ("higher_order.cond", "higher_order.while_loop", "aten.relu_.default", "aten.as_strided.default"):
        assert resolve(op) is not None
