"""An optimizer may come in the wrapper that a framework put around it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.session.member import innermost
from tests import torchvision_shim

torchvision_shim.install()
accelerate = pytest.importorskip("accelerate")


def test_the_optimizer_that_accelerate_wrapped_counts() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(256, 64)
    plain = torch.optim.AdamW(model.parameters())
    model, wrapped = accelerator.prepare(model, plain)
    assert wrapped is not plain
    assert innermost(wrapped) is plain
    lowtide.fit(model, budget="100% of plain", optimizer=wrapped)
    model(x).sum().backward()
    wrapped.step()
    breakdown = lowtide.memory_stats(model).breakdown
    assert breakdown is not None
    assert breakdown.optimizer_B >= 2 * sum(p.nbytes for p in model.parameters())
    assert "optimizer state" not in " ".join(model.lowtide.plan.covers.outside)
