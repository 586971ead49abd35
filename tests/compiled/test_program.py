"""Reading what Inductor wrote: a few programs in its style, with kernels that are functions of this file."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from lowtide.compiled.program import Plain, Seen, read_program
from lowtide.device.compiled_kernels import Window
from lowtide.device.inductor import InductorProgram
from lowtide.errors import UnsupportedOperator

HEAD = '''
cpp_fused_relu_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r"""
void kernel(const float* in_ptr0, float* out_ptr0) {}
""")
'''


def relu(source: torch.Tensor, into: torch.Tensor) -> None:
    into.copy_(source.clamp(min=0))


def program(body: str, head: str = HEAD, **names: Any) -> InductorProgram:
    """A program whose `call` has the given statements."""
    source = f"{head}\nclass Runner:\n    def call(self, args):\n" + textwrap.indent(textwrap.dedent(body), " " * 8)
    known = {"torch": torch, "aten": torch.ops.aten, "cpp_fused_relu_0": relu, "call": relu, **names}
    return InductorProgram(
        source, known, {"cpp_fused_relu_0:1": ['File "model.py", line 3, in forward\n  relu(x)']}, 0.0
    )


def test_reads_and_writes_follow_from_the_types_of_a_kernel() -> None:
    found = read_program(
        program(
            """
            primals_1, = args
            args.clear()
            assert_size_stride(primals_1, (2, 3), (3, 1), 'input')
            buf0 = empty_strided_cpu((2, 3), (3, 1), torch.float32)
            # [Provenance debug handles] cpp_fused_relu_0:1
            cpp_fused_relu_0(primals_1, buf0)
            del primals_1
            return (buf0, reinterpret_tensor(buf0, (3, ), (1, ), 3), None, )
            """
        )
    )
    (call,) = found.calls
    assert found.inputs == ("primals_1",)
    assert call.kernel.call is relu
    assert (tuple(call.reads), call.writes) == (("primals_1",), ("buf0",))
    assert "model.py" in call.traces[0]
    assert found.buffers["buf0"].extent_B == 24
    assert found.returns == (Seen("buf0"), Seen("buf0", Window((3,), (1,), 3)), Plain(None))


def test_windows_on_windows_add_their_offsets() -> None:
    found = read_program(
        program(
            """
            primals_1, = args
            buf0 = empty_strided_cpu((2, 6), (6, 1), torch.float32)
            buf1 = reinterpret_tensor(buf0, (2, 3), (6, 1), 3)  # alias
            cpp_fused_relu_0(primals_1, reinterpret_tensor(buf1, (1, 3), (6, 1), 6))
            return (buf1, )
            """
        )
    )
    assert found.calls[0].arguments[1] == Seen("buf0", Window((1, 3), (6, 1), 9))
    assert found.calls[0].writes == ("buf0",)


def test_results_of_operators_lie_as_the_program_checks() -> None:
    found = read_program(
        program(
            """
            primals_1, = args
            buf0 = torch.ops.aten.max.dim(primals_1, 1)
            buf1 = buf0[0]
            assert_size_stride(buf1, (2, ), (1, ), 'torch.ops.aten.max.dim')
            buf2 = buf0[1]
            return (buf1, buf2, )
            """
        )
    )
    (call,) = found.calls
    assert call.kernel.call is torch.ops.aten.max.dim
    assert call.picks == {"buf1": (0,), "buf2": (1,)}
    assert call.layouts == {"buf1": ((2,), (1,))}


def test_what_triton_writes_is_told_by_its_names() -> None:
    head = """
triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', '''
@triton_heuristics.pointwise(inductor_meta={'mutated_arg_names': ['in_out_ptr0']})
def triton_poi_fused_0(in_out_ptr0, in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
"""

    class Launcher:
        @staticmethod
        def run(*_: Any) -> None: ...

    found = read_program(
        program(
            """
            primals_1, = args
            with torch.cuda._DeviceGuard(0):
                torch.cuda.set_device(0)
                buf0 = empty_strided_cuda((4, ), (1, ), torch.bfloat16)
                buf1 = empty_strided_cuda((4, ), (1, ), torch.float32)
                stream0 = get_raw_stream(0)
                triton_poi_fused_0.run(buf0, primals_1, buf1, 4, stream=stream0)
            return (buf0, buf1, )
            """,
            head,
            triton_poi_fused_0=Launcher,
        )
    )
    (call,) = found.calls
    assert call.writes == ("buf0", "buf1")
    assert tuple(call.reads) == ("primals_1",)
    assert found.buffers["buf0"].device == "cuda"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("buf0 = empty_strided_cpu((s0, 3), (3, 1), torch.float32)", "dynamic=False"),
        ("while True: pass", "is not understood (while True: pass)"),
        ("buf0 = open('/etc/passwd')", "is not understood"),
        ("cpp_fused_relu_0(primals_1, primals_1)", "writes into an argument"),
        ("__import__('os').system('true')", "is not understood"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(statement: str, says: str) -> None:
    with pytest.raises(UnsupportedOperator) as caught:
        read_program(program(f"primals_1, = args\n{statement}\nreturn (primals_1, )"))
    assert says in str(caught.value)
    assert "compiler=" in str(caught.value) or "dynamic=" in str(caught.value)
