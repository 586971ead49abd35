"""What Inductor's programs become: graphs whose nodes are pure, whatever the programs write where, and in which order.

The kernels are functions of this file; the graph is run node by node, and some nodes twice.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import fx

from lowtide.capture.joint import Joint
from lowtide.compiled.joint import joint_of_kernels
from lowtide.compiled.program import read_program
from lowtide.device.compiled_kernels import compiled_op, kernel_of
from lowtide.device.fake_tensors import fake_mode
from lowtide.device.inductor import InductorProgram
from lowtide.errors import UnsupportedOperator
from lowtide.ir.compiled_names import overwriting

KINDS = {
    "double": "['const float*', 'float*']",
    "halves": "['const float*', 'float*', 'float*']",
    "zero": "['float*']",
    "add": "['const float*', 'const float*', 'float*']",
}


def double(a: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(a * 2)


def halves(a: torch.Tensor, out: torch.Tensor, other: torch.Tensor) -> None:
    out.copy_(a / 2)
    other.copy_(a / 4)


def zero(out: torch.Tensor) -> None:
    out.zero_()


def add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(a + b)


NAMES = {"torch": torch, "aten": torch.ops.aten, "double": double, "halves": halves, "zero": zero, "add": add}


def joint(body: str, size: int = 4, inputs: int = 1) -> Joint:
    """The graph of a program whose inputs are vectors."""
    heads = "\n".join(f'{n} = async_compile.cpp_pybinding({k}, r"""{n}""")' for n, k in KINDS.items())
    given = ", ".join(f"arg{i}" for i in range(inputs))
    text = f"{heads}\ndef call(args):\n    {given}, = args\n" + textwrap.indent(textwrap.dedent(body), "    ")
    program = read_program(InductorProgram(text, {**NAMES, "call": None}, {}, 0.0))
    graph = fx.Graph()
    with fake_mode():
        places = [graph.placeholder(f"primals_{i}") for i in range(inputs)]
        for place in places:
            place.meta["val"] = torch.empty(size)
    graph.output(tuple(places))
    outputs: list[Any] = [places[0]] * len(program.returns)
    traced = Joint(fx.GraphModule({}, graph), places, [], outputs, [], {}, frozenset())
    return joint_of_kernels(traced, program, None, None)


def results(found: Joint, *tensors: torch.Tensor, twice: bool = True) -> tuple[torch.Tensor, ...]:
    """What a graph returns; every kernel in it runs twice, and nobody may notice."""

    class Twice(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if twice and kernel_of(target) is not None:
                super().call_function(target, args, kwargs)
            return super().call_function(target, args, kwargs)

    found.module.recompile()
    return Twice(found.module).run(*tensors)


def kernels(found: Joint) -> list[str]:
    return [k.name for n in found.module.graph.nodes if (k := kernel_of(n.target)) is not None]


def test_slices_of_a_concatenation_are_written_by_one_node_where_nothing_lies_between() -> None:
    found = joint("""
        buf0 = empty_strided_cpu((8, ), (1, ), torch.float32)
        double(arg0, reinterpret_tensor(buf0, (4, ), (1, ), 0))
        double(arg1, reinterpret_tensor(buf0, (4, ), (1, ), 4))
        return (buf0, )
        """, inputs=2)  # fmt: skip
    a, b = torch.arange(4.0), torch.ones(4)
    assert kernels(found) == ["double"]
    assert torch.equal(results(found, a, b)[0], torch.cat([a * 2, b * 2]))


def test_a_part_that_comes_with_another_result_is_a_version_of_its_own() -> None:
    found = joint("""
        buf0 = empty_strided_cpu((8, ), (1, ), torch.float32)
        buf1 = empty_strided_cpu((4, ), (1, ), torch.float32)
        halves(arg0, reinterpret_tensor(buf0, (4, ), (1, ), 0), buf1)
        buf2 = empty_strided_cpu((4, ), (1, ), torch.float32)
        double(buf1, buf2)
        double(buf2, reinterpret_tensor(buf0, (4, ), (1, ), 4))
        return (buf0, buf1, )
        """)  # fmt: skip
    a = torch.arange(4.0)
    assert kernels(found) == ["halves", "double", "double"]
    whole, part = results(found, a)
    assert torch.equal(whole, torch.cat([a / 2, a]))
    assert torch.equal(part, a / 4)
    last = [k for n in found.module.graph.nodes if (k := kernel_of(n.target)) is not None][-1]
    old = torch.full((8,), 7.0)
    new = last.run(a, old) if last.buffers[0].filled_from == 1 else last.run(old, a)
    assert old.eq(7.0).all()
    assert new[:4].eq(7.0).all()
    over = compiled_op(overwriting(last.op, last.buffers[0].filled_from or 0, 0))
    assert over is not None
    again = over(a, old) if last.buffers[0].filled_from == 1 else over(old, a)
    assert torch.equal(again, new)
    assert again.data_ptr() == old.data_ptr()


def test_what_accumulates_into_zeros_does_so_each_time_it_runs() -> None:
    found = joint("""
        buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
        buf1 = torch.ops.aten.arange.default(2)
        zero(buf0)
        aten.index_put_(buf0, [buf1], reinterpret_tensor(arg0, (2, ), (1, ), 2), True)
        return (buf0, )
        """)  # fmt: skip
    assert torch.equal(results(found, torch.arange(4.0))[0], torch.tensor([2.0, 3.0, 0.0, 0.0]))


def test_seeds_are_drawn_by_the_operator_that_moves_the_generator() -> None:
    found = joint("""
        buf0 = empty_strided_cpu((3, ), (1, ), torch.int64)
        aten.randint.low_out(-9223372036854775808, 9223372036854775807, [3], out=buf0)
        return (buf0, )
        """)  # fmt: skip
    targets = [n.target for n in found.module.graph.nodes if n.op == "call_function"]
    assert targets == [torch.ops.aten.randint.low]
    torch.manual_seed(3)
    (drawn,) = results(found, torch.ones(4))
    torch.manual_seed(3)
    expected = torch.empty(3, dtype=torch.int64)
    torch.ops.aten.randint.low_out(-(2**63), 2**63 - 1, [3], out=expected)
    assert torch.equal(drawn, expected)


def test_a_buffer_that_nobody_has_written_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="nothing has written"):
        joint("""
            buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
            buf1 = empty_strided_cpu((4, ), (1, ), torch.float32)
            add(buf0, arg0, buf1)
            return (buf1, )
            """)  # fmt: skip
