"""Calls as data become the calls that PyTorch users write."""

from __future__ import annotations

import math
import operator

import pytest
import torch

from lowtide.device.calls import apply_view, arguments, constant, decode, pick, resolve
from lowtide.errors import UnsupportedOperator
from lowtide.ir.call import Const, Held, Items, Ref, View


def test_operators_by_name() -> None:
    assert resolve("aten.addmm.default") is torch.ops.aten.addmm.default
    assert resolve("aten.add.Tensor") is torch.ops.aten.add.Tensor
    assert resolve("prims.convert_element_type.default") is torch.ops.prims.convert_element_type.default
    assert resolve("higher_order.cond") is torch.ops.higher_order.cond
    assert resolve("torch.ops.higher_order.cond") is torch.ops.higher_order.cond
    assert resolve("operator.getitem") is operator.getitem
    assert resolve("math.sqrt") is math.sqrt


@pytest.mark.parametrize(
    "name",
    ["aten.nothing.default", "aten.add.Nothing", "nobody.nothing.default", "higher_order.nothing", "builtins.exec",
     "torch.load", "operator.__doc__", "operator.nothing", "aten", "", "a.b.c.d", "os.system"],
)  # fmt: skip
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedOperator, match="no operator"):
        resolve(name)


def test_custom_operators_are_found() -> None:
    library = torch.library.Library("lowtide_test_calls", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    assert resolve("lowtide_test_calls.twice.default")(torch.ones(1)).item() == 2
    library._destroy()


def test_constants() -> None:
    assert constant(Const("dtype", "bfloat16")) is torch.bfloat16
    assert constant(Const("device", "cpu")) == torch.device("cpu")
    assert constant(Const("layout", "strided")) is torch.strided
    assert constant(Const("memory_format", "channels_last")) is torch.channels_last
    assert constant(Const("float", "-inf")) == -math.inf
    assert math.isnan(constant(Const("float", "nan")))
    assert constant(Const("complex", "(1+2j)")) == 1 + 2j
    with pytest.raises(UnsupportedOperator, match="no dtype"):
        constant(Const("dtype", "float3"))
    with pytest.raises(UnsupportedOperator, match="no dtype"):
        constant(Const("dtype", "load"))


def test_arguments_are_decoded_in_depth() -> None:
    x = torch.ones(2)
    assert decode(Items((Ref(0), None, Items((1, True)))), (x,)) == [x, None, [1, True]]
    args, kwargs = arguments((Ref(0), 1.5), (("dtype", Const("dtype", "int8")), ("body", Held(0))), (x,), ("held",))
    assert args == [x, 1.5]
    assert kwargs == {"dtype": torch.int8, "body": "held"}
    with pytest.raises(UnsupportedOperator, match="capture"):
        decode(Held(1), (), ("held",))


def test_views_move_no_byte() -> None:
    base = torch.arange(12.0).view(3, 4)
    turned = apply_view(View("aten.transpose.int", (Ref(0), 0, 1)), base)
    assert turned.data_ptr() == base.data_ptr()
    assert turned.shape == (4, 3)
    second = apply_view(View("aten.split.Tensor", (Ref(0), 2, 1), pick=1), base)
    assert torch.equal(second, base[:, 2:])
    named = apply_view(View("aten.slice.Tensor", (Ref(0),), (("dim", 1), ("start", 1))), base)
    assert torch.equal(named, base[:, 1:]) or torch.equal(named, base)
    assert pick((1, (2, 3)), (1, 0)) == 2
    assert pick(base, ()) is base
