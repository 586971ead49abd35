"""Whole steps whose parameters and optimizer state live on the host, and visit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import lowtide
from lowtide.api.train_step import session_of
from lowtide.device import storage as storages
from tests.stepping import plainly, wholly


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def wide() -> nn.Module:
    """Layers whose weights and state take far more than a batch does."""
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU())))


def batches(count: int, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 64, generator=generator), torch.randn(size, 64, generator=generator)) for _ in range(count)
    ]


def adamw(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), 1e-3)


def stepped(model: nn.Module, optimizer: optim.Optimizer, budget: int | str, **options: Any) -> lowtide.TrainStep:
    return lowtide.TrainStep(
        model, F.mse_loss, optimizer, budget, host_budget="64MiB", link="8 GB/s", work=2_000, **options
    )


def kept_B(model: nn.Module) -> int:
    """Bytes of the parameters with Adam's state."""
    return 3 * sum(p.nbytes for p in model.parameters())


def smallest(step: lowtide.TrainStep, batch: tuple[Any, ...]) -> int:
    step.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        step(*batch)
    assert caught.value.smallest_B is not None
    return caught.value.smallest_B


def in_arena(step: lowtide.TrainStep, tensor: torch.Tensor) -> bool:
    hard_budget = session_of(step).budget_scope.hard_budget
    return hard_budget is not None and storages.place_of(tensor.untyped_storage(), hard_budget.arena) is not None


def test_training_in_less_than_the_parameters_take() -> None:
    plain, model = wide(), wide()
    optimizer = adamw(model)
    expected = plainly(plain, adamw(plain), batches(10), loss_fn=F.mse_loss)
    step = stepped(model, optimizer, 1)
    low_B = smallest(step, batches(1)[0])
    assert low_B < kept_B(model) / 2
    step.set_budget(low_B)
    assert wholly(step, model, optimizer, batches(10)).apart(expected) == []
    stats, plan = step.memory_stats(), step.plan
    assert plan is not None
    assert stats.reserved_B <= low_B
    assert stats.misplaced_allocations == stats.spills == 0
    assert plan.record.graph.hosted_B > kept_B(model) / 2
    assert plan.record.outcome.stats["host_updates"] > 0
    assert low_B < 1.02 * plan.floor_B  # which no update sets that the host can do
    assert not in_arena(step, model[0].weight)
    moved = step.transfers().observed
    assert moved.from_host.moved_B > 0
    assert moved.host_runs > 0


def test_what_is_host_resident_changes_with_the_budget() -> None:
    plain, model = wide(), wide()
    one, other = adamw(plain), adamw(model)
    step = stepped(model, other, "100% of plain")
    step(*batches(1)[0])
    assert in_arena(step, model[0].weight)
    low_B = smallest(step, batches(1)[0])
    plainly(plain, one, batches(1), loss_fn=F.mse_loss)
    for budget in (low_B, "100% of plain", low_B):
        expected = plainly(plain, one, batches(2), loss_fn=F.mse_loss)
        step.set_budget(budget)
        assert wholly(step, model, other, batches(2)).apart(expected) == []
        assert in_arena(step, model[0].weight) == (budget != low_B)
    step.close()
    expected = plainly(plain, one, batches(2), loss_fn=F.mse_loss)
    assert plainly(model, other, batches(2), loss_fn=F.mse_loss).apart(expected) == []


def test_other_batches_and_checkpoints() -> None:
    plain, model = wide(), wide()
    one, other = adamw(plain), adamw(model)
    data = [*batches(2), *batches(1, 5), *batches(1, 40), *batches(1)]
    step = stepped(model, other, 1)
    step.set_budget(int(1.1 * smallest(step, batches(1, 40)[0])))
    expected = plainly(plain, one, data, loss_fn=F.mse_loss)
    assert wholly(step, model, other, data).apart(expected) == []
    checkpoint = copy.deepcopy((plain.state_dict(), one.state_dict()))
    step(*batches(1)[0])
    model.load_state_dict(checkpoint[0])
    other.load_state_dict(copy.deepcopy(checkpoint[1]))
    expected = plainly(plain, one, data, loss_fn=F.mse_loss)
    assert wholly(step, model, other, data).apart(expected) == []
    assert step.memory_stats().spills == 0


@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"accumulate": 2}, {"accumulate": 2, "clip_norm": 0.1}])
def test_clipping_and_accumulation(options: dict[str, Any]) -> None:
    plain, model = wide(), wide()
    optimizer = adamw(model)
    clip = (lambda p: nn.utils.clip_grad_norm_(p, 0.1)) if "clip_norm" in options else None
    accumulate = options.get("accumulate", 1)
    expected = plainly(plain, adamw(plain), batches(5), loss_fn=F.mse_loss, clip=clip, accumulate=accumulate)
    step = stepped(model, optimizer, kept_B(model), **options)
    assert wholly(step, model, optimizer, batches(5)).apart(expected) == []
    assert step.memory_stats().misplaced_allocations == step.memory_stats().spills == 0
    host_resident = [p.record.graph.hosted_B for p in step.plans]
    assert len(host_resident) == accumulate
    assert min(host_resident) == max(host_resident) > 0


def test_parameters_that_share_a_storage() -> None:
    def flat() -> nn.Module:
        model = wide()
        whole = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(whole, model.parameters())
        return model

    plain, model = flat(), flat()
    optimizer = adamw(model)
    expected = plainly(plain, adamw(plain), batches(3), loss_fn=F.mse_loss)
    step = stepped(model, optimizer, 1)
    step.set_budget(smallest(step, batches(1)[0]))
    assert wholly(step, model, optimizer, batches(3)).apart(expected) == []
