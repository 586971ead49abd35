"""Upsampling is traced as the operator that eager runs, where torch's own capture rounds differently."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.device.python_kernels import composites_traced_as_eager
from tests.networks import differences, train, twin

aten = torch.ops.aten


class Upsampling(nn.Module):
    """Every kind of interpolation between pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * self.weight
        loss = F.interpolate(h, scale_factor=2.0, mode="bilinear").tanh().square().mean()
        loss = loss + F.interpolate(h, size=(11, 13), mode="bicubic").tanh().square().mean()
        loss = loss + F.interpolate(h, size=(5, 6), mode="bilinear", antialias=True).tanh().mean()
        return loss + F.interpolate(h.flatten(2), size=70, mode="linear").tanh().square().mean()


def test_training_is_unchanged() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Upsampling()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=1_000)
    batches = [torch.randn(2, 3, 8, 8) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []
    ops = {r.op for r in fitted.lowtide.plan.record.graph.recipes}
    assert {"aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default"} & ops


def test_torch_is_left_as_it_was() -> None:
    op = aten.upsample_bilinear2d.vec
    before = dict(op.py_kernels)
    with composites_traced_as_eager():
        assert torch._C.DispatchKey.Autograd not in op.py_kernels
    assert before
    assert dict(op.py_kernels) == before
