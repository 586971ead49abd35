"""`TrainStep(verify=True)`: what is compared, what is refused, and that nothing has changed then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import lowtide
from lowtide.api.verify import verified_steps
from lowtide.errors import VerificationError
from tests.api.test_verify import counted_plans, off_by_a_bit
from tests.stepping import Trained, batches, perceptron, plainly, wholly


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[lowtide.Verification]:
    """What every verification has found."""
    made: list[lowtide.Verification] = []
    verified = verified_steps.verified

    def noted(*args: Any) -> Any:
        made.append(verified(*args))
        return made[-1]

    monkeypatch.setattr(verified_steps, "verified", noted)
    return made


class Named(optim.AdamW):
    """An optimizer that nobody knows."""


STEPS: dict[str, tuple[Callable[[nn.Module], optim.Optimizer], dict[str, Any]]] = {
    "adamw": (lambda m: optim.AdamW(m.parameters(), 1e-3), {}),
    "clipped": (lambda m: optim.SGD(m.parameters(), 0.1, momentum=0.9), {"clip_norm": 0.1}),
    "accumulated": (lambda m: optim.Adam(m.parameters(), 1e-3), {"accumulate": 2, "clip_norm": 0.1}),
    "opaque": (lambda m: Named(m.parameters(), 1e-3), {"clip_norm": 0.1}),
    "on the host": (lambda m: optim.AdamW(m.parameters(), 1e-3), {"host_budget": "1MiB", "link": "8 GB/s"}),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore:Named is not one of the optimizers:lowtide.BudgetWarning")
def test_the_first_step_of_every_shape_is_verified(name: str, found: list[lowtide.Verification]) -> None:
    make, options = STEPS[name]
    plain, model = perceptron(), perceptron()
    data = [*batches(2), *batches(2, size=12)]
    clip, count = options.get("clip_norm"), options.get("accumulate", 1)
    clipped = None if clip is None else lambda p: torch.nn.utils.clip_grad_norm_(p, clip)
    expected = plainly(plain, make(plain), data, clip=clipped, accumulate=count)
    optimizer = make(model)
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "1MiB", work=200, verify=True, **options)
    assert wholly(step, model, optimizer, data).apart(expected) == []
    assert [f.equal for f in found] == [True, True], [f.explain() for f in found]
    assert found[0].compared["output"] == count
    assert found[0].compared["optimizer state"] >= 6
    assert found[0].compared["buffer"] == 3
    assert found[0].compared.get("gradient", 0) == (clip is not None)


def test_a_wrong_step_is_refused_and_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron()
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "1MiB", work=200, verify=True, without=["in-place"])
    first, other = *batches(1), *batches(1, size=12)
    step(*first)
    off_by_a_bit("aten.gelu.default", monkeypatch, planned=True)
    step(*first)  # verified before; its code is kept
    before, calls = Trained.of([], model, optimizer), step.memory_stats()
    with pytest.raises(VerificationError, match=r"nothing has been changed(.|\n)*aten\.gelu\.default") as caught:
        step(*other)
    assert isinstance(caught.value.verification, lowtide.Verification)
    assert Trained.of([], model, optimizer).apart(before) == []
    assert step.memory_stats().reserved_B == calls.reserved_B
    step(*first)


def test_the_plan_that_runs_is_the_one_that_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted_plans(monkeypatch)
    model = perceptron()
    step = lowtide.TrainStep(model, F.cross_entropy, optim.SGD(model.parameters(), 0.1), "1MiB", work=200, verify=True)
    step(*batches(1)[0])
    assert len(made) == 1


def test_what_has_no_plain_step_is_refused() -> None:
    model = copy.deepcopy(perceptron()).bfloat16()
    with pytest.raises(VerificationError, match="master"):
        lowtide.TrainStep(
            model, F.cross_entropy, optim.SGD(model.parameters(), 0.1), "1MiB", verify=True, master_weights=True
        )
    optimizer = optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.warns(lowtide.BudgetWarning):
        step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "1MiB", verify=True)
    with pytest.raises(VerificationError, match="hooks are registered"):
        step(*batches(1)[0])
