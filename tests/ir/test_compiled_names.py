"""Names of compiled kernels: what they say to people, and to those who look for what may run in place."""

from __future__ import annotations

import pytest

from lowtide.ir.compiled_names import compiled_name, may_overwrite, overwriting, plain_name, said_of

KERNEL = compiled_name("cpp_fused_add_native_dropout", "0123456789abcdef", [(3, 1), (0, 2)])


def test_a_name_says_what_may_be_overwritten() -> None:
    assert may_overwrite(KERNEL) == ((0, 2), (3, 1))
    assert may_overwrite(compiled_name("mm", "0123456789abcdef")) == ()
    assert may_overwrite("aten.add.Tensor") == ()


def test_a_kernel_that_overwrites_is_named_after_the_plain_one() -> None:
    assert plain_name(overwriting(KERNEL, 3, 1)) == (KERNEL, (3, 1))
    assert plain_name(KERNEL) == (KERNEL, None)
    assert may_overwrite(overwriting(KERNEL, 3, 1)) == ()


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (KERNEL, "fused add_native_dropout"),
        (overwriting(KERNEL, 3, 1), "fused add_native_dropout, in place"),
        (compiled_name("triton_poi_fused__to_copy_relu", "0" * 16), "fused to_copy_relu"),
        (compiled_name("cpp_fused", "0" * 16), "fused copies"),
        (compiled_name("addmm", "0" * 16), "addmm"),
        ("aten.add.Tensor", "aten.add.Tensor"),
    ],
)
def test_what_is_fused_is_said(op: str, says: str) -> None:
    assert said_of(op) == says
