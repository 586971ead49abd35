"""What compiled kernels are refused for, in words, before anything is compiled; and what a lookalike file cannot do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device.calls import resolve
from lowtide.errors import ArgumentError, CaptureError, UnsupportedOperator, VerificationError


def model() -> nn.Module:
    return nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [({"compiler": "gcc"}, "there is 'eager' and 'inductor'"), ({"compiler": None}, "there is 'eager' and 'inductor'")],
)
def test_a_compiler_that_there_is_not_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        lowtide.fit(model(), budget="1GiB", **given)


def test_steps_of_compiled_kernels_are_not_verified_against_plain_pytorch() -> None:
    with pytest.raises(VerificationError, match=r"torch\.compile"):
        lowtide.fit(model(), budget="1GiB", compiler="inductor", verify=True)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(VerificationError, match=r"torch\.compile"):
        lowtide.TrainStep(net, nn.MSELoss(), optimizer, "1GiB", compiler="inductor", verify=True)


def test_compiled_kernels_are_for_this_machine_and_fixed_sizes() -> None:
    with pytest.raises(ArgumentError, match="machine="):
        lowtide.plan(model(), args=(torch.ones(4, 3),), budget="1GiB", machine="h200", compiler="inductor")
    with pytest.raises(ArgumentError, match="dynamic=True"):
        lowtide.plan(model(), args=(torch.ones(4, 3),), budget="1GiB", dynamic=True, compiler="inductor")
    with pytest.raises(ArgumentError, match="max_batch"):
        lowtide.max_batch(lambda n: torch.ones(n, 3), model(), "1GiB", compiler="inductor")


def test_an_unknown_compiler_of_the_backend_is_refused_at_the_first_call() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model(), backend="lowtide", options={"budget": "1GiB", "compiler": "gcc"})
    with pytest.raises(ArgumentError, match="there is 'eager' and 'inductor'"):
        compiled(torch.ones(4, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def test_what_torch_compile_leaves_to_python_is_refused_with_the_compiler_that_captures_it() -> None:
    torch._dynamo.reset()
    fitted = lowtide.fit(Recurrent(), budget="1GiB", compiler="inductor")
    with pytest.raises(CaptureError, match='compiler="eager"'):
        fitted(torch.ones(4, 2, 3))


def test_a_kernel_is_called_by_name_only_where_it_was_compiled() -> None:
    for op in (
        "compiled.cpp_fused_add.0123456789abcdef",
        "compiled.cpp_fused_add.0123456789abcdef.may_0_0",
        "compiled.cpp_fused_add.0123456789abcdef.may_0_0.over_0_0",
    ):
        with pytest.raises(UnsupportedOperator):
            resolve(op)
