"""Kernels that run twice, for want of bytes or to recompute something: what they write over is written once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
UNIT = 2**14  # floats
BUDGET_B = 21 * UNIT * 4 // 2


def test_statistics_are_updated_once_though_the_kernel_ran_twice() -> None:
    """What it reads lies in the middle of the arena, so that its result fits only once that has moved."""

    def normalised(norm: nn.BatchNorm1d) -> torch.Tensor:
        before = torch.ones(3 * UNIT)  # is evicted
        x = torch.rand(UNIT // 16, 64, generator=torch.Generator().manual_seed(0))
        made: torch.Tensor = norm(x).detach()
        assert before.dim() == 1
        return made

    plain = nn.BatchNorm1d(64)
    expected = normalised(plain)
    with lowtide.eager(BUDGET_B, policy="lru") as run:
        norm = nn.BatchNorm1d(64)
        made = normalised(norm)
        assert run.stats().retries > 0
    assert torch.equal(made, expected)
    assert torch.equal(norm.running_mean, plain.running_mean)  # type: ignore[arg-type]
    assert torch.equal(norm.running_var, plain.running_var)  # type: ignore[arg-type]
    assert int(norm.num_batches_tracked or 0) == 1


def test_results_of_a_call_that_wrote_a_leaf_are_not_recomputed() -> None:
    mean, variance = torch.zeros(64), torch.ones(64)
    x = torch.rand(UNIT // 16, 64, generator=torch.Generator().manual_seed(0))
    scale, shift = torch.ones(64), torch.zeros(64)
    training = (True, 0.1, 1e-5)
    plain, *_ = torch.ops.aten._native_batch_norm_legit(x, scale, shift, mean.clone(), variance.clone(), *training)
    with lowtide.eager(BUDGET_B * 2, policy="lru") as run:
        inside = torch.ops.aten._native_batch_norm_legit(x, scale, shift, mean, variance, *training)[0]
        values, once = torch.ones(64).cos(), mean.clone()
        torch._foreach_add_([mean, values], 1.0)
        later = [torch.ones(4 * UNIT) for _ in range(5)]
        assert run.stats().evictions > 0
        assert torch.equal(inside, plain)
        assert torch.equal(values, torch.ones(64).cos() + 1)
        assert torch.equal(mean, once + 1)
        assert float(later.pop()[0]) == 1
        del later


def test_what_a_kernel_wrote_over_is_recomputed_before_its_second_try() -> None:
    def masked() -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.ones(3 * UNIT)
        x = torch.rand(4 * UNIT, generator=torch.Generator().manual_seed(0))
        x *= torch.ones(4 * UNIT, dtype=torch.bool)  # the kernel makes numbers of it
        return before, x

    with lowtide.eager(BUDGET_B, policy="lru") as run:
        before, x = masked()
        assert run.stats().retries > 0
        del before
    assert torch.equal(x, masked()[1])
