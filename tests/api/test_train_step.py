"""A whole step is the loop that people write, bit for bit: losses, parameters, buffers, state, generator."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import lowtide
from tests.networks import NETWORKS
from tests.stepping import Batchwise, Make, batches, perceptron, plainly, wholly


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def adamw(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), 1e-3)


def smallest(step: lowtide.TrainStep, batch: tuple[Any, ...]) -> int:
    step.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        step(*batch)
    assert caught.value.smallest_B is not None
    return caught.value.smallest_B


class Adapted(nn.Module):
    """A frozen layer with low-rank matrices added to it, twice: LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(12, 12).requires_grad_(False) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(12, 2, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(2, 12, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            x = F.gelu(base(x) + up(down(F.dropout(x, 0.1))))
        return x[:, :5]


@pytest.mark.parametrize(
    "name", ["tied", "unet", *(pytest.param(n, marks=pytest.mark.breadth) for n in ("resnet", "gpt2"))]
)
def test_ten_steps_at_the_smallest_budget_and_above_it(name: str) -> None:
    plain = Batchwise(NETWORKS[name])
    model = copy.deepcopy(plain)
    start = copy.deepcopy(model.state_dict())
    data = [(batch,) for batch in NETWORKS[name].batches(10)]
    expected = plainly(plain, adamw(plain), data, loss_fn=None)
    optimizer = adamw(model)
    step = lowtide.TrainStep(model, None, optimizer, budget="100% of plain", work=1_000)
    assert wholly(step, model, optimizer, data).apart(expected) == []
    roomy = step.plan
    low_B = smallest(step, data[0])
    step.set_budget(low_B)
    model.load_state_dict(start)
    optimizer.load_state_dict(adamw(model).state_dict())
    assert wholly(step, model, optimizer, data).apart(expected) == []
    tight, stats = step.plan, step.memory_stats()
    assert tight is not None
    assert roomy is not None
    assert tight.floor_B <= tight.reserved_B <= low_B < roomy.reserved_B
    assert (stats.misplaced_allocations, stats.planned_misses, stats.spills) == (0, 0, 0)
    assert stats.reserved_B <= stats.predicted_B <= low_B


def test_gradients_do_not_outlive_their_updates() -> None:
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
    gradients_B = sum(p.nbytes for p in model.parameters())
    x = torch.randn(4, 128)

    def mean(y: torch.Tensor) -> torch.Tensor:
        return y.square().mean()

    step = lowtide.TrainStep(model, mean, optim.SGD(model.parameters(), 0.1), "100% of plain", targets=0, work=2_000)
    step(x)
    assert step.plan is not None
    assert step.plan.peak_B < 2 * gradients_B
    assert all(p.grad is None for p in model.parameters())


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "asgd": lambda p: optim.ASGD(p),
    "adadelta": lambda p: optim.Adadelta(p),
    "adafactor": lambda p: optim.Adafactor(p),
    "adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1),
    "adam": lambda p: optim.Adam(p, weight_decay=0.1),
    "amsgrad": lambda p: optim.Adam(p, amsgrad=True, maximize=True),
    "adamw-foreach": lambda p: optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: optim.AdamW(p, fused=True),
    "adamax": lambda p: optim.Adamax(p),
    "nadam": lambda p: optim.NAdam(p, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": lambda p: optim.RAdam(p),
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: optim.Rprop(p),
    "sgd": lambda p: optim.SGD(p, 0.1),
    "sgd-nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd-dampening": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "sgd-fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5, fused=True),
    "lr-tensor": lambda p: optim.AdamW(p, lr=torch.tensor(1e-3)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_table(name: str) -> None:
    plain, model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5)), None
    model = copy.deepcopy(plain)
    one, other = OPTIMIZERS[name](plain.parameters()), OPTIMIZERS[name](model.parameters())
    expected = plainly(plain, one, batches(4))
    step = lowtide.TrainStep(model, F.cross_entropy, other, "100% of plain", work=1_000)
    assert step.opaque == ""
    assert wholly(step, model, other, batches(4)).apart(expected) == []


def test_muon_and_what_it_does_not_step() -> None:
    def make(model: nn.Module) -> optim.Optimizer:
        return optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.1)

    plain, model = perceptron(), perceptron()
    expected = plainly(plain, make(plain), batches(3))
    optimizer = make(model)
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "100% of plain", work=1_000)
    assert wholly(step, model, optimizer, batches(3)).apart(expected) == []


class Renamed(optim.AdamW):
    """An optimizer that nobody knows."""


@pytest.mark.parametrize("make", [adamw, lambda m: Renamed(m.parameters(), 1e-3)], ids=["known", "opaque"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clips", [False, True])
def test_clipping_and_accumulation(make: Make, accumulate: int, clips: bool) -> None:
    plain, model = perceptron(), perceptron()
    optimizer = make(model)
    clip = (lambda p: nn.utils.clip_grad_norm_(p, 0.5)) if clips else None
    expected = plainly(plain, make(plain), batches(7), clip=clip, accumulate=accumulate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lowtide.BudgetWarning)
        step = lowtide.TrainStep(
            model, F.cross_entropy, optimizer, "100% of plain",
            clip_norm=0.5 if clips else None, accumulate=accumulate, work=1_000,
        )  # fmt: skip
    assert wholly(step, model, optimizer, batches(7)).apart(expected) == []
    assert bool(step.opaque) == (type(optimizer) is Renamed)
    assert step.waiting == 0
    assert (step.total_norm is not None) == clips
    stats = step.memory_stats()
    assert (stats.misplaced_allocations, stats.spills) == (0, 0)


@pytest.mark.parametrize("norm_type", [1.0, float("inf")])
def test_other_norms_and_an_optimizer_that_sums(norm_type: float) -> None:
    plain, model = perceptron(), perceptron()
    one, other = optim.Adafactor(plain.parameters()), optim.Adafactor(model.parameters())
    expected = plainly(plain, one, batches(3), clip=lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type))
    step = lowtide.TrainStep(
        model, F.cross_entropy, other, "100% of plain", clip_norm=0.1, norm_type=norm_type, work=1_000
    )
    assert wholly(step, model, other, batches(3)).apart(expected) == []


def test_gathered_gradients_can_be_forgotten() -> None:
    plain, model = perceptron(), perceptron()
    optimizer = adamw(model)
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "100% of plain", accumulate=2, work=1_000)
    step(*batches(1)[0])
    assert step.waiting == 1
    step.zero_grad()
    assert step.waiting == 0
    assert not step.flush()
    plain.load_state_dict(model.state_dict())
    expected = plainly(plain, adamw(plain), batches(4), accumulate=2)
    assert wholly(step, model, optimizer, batches(4)).apart(expected) == []


def test_low_rank_adapters() -> None:
    torch.manual_seed(0)
    plain = Adapted()
    model = copy.deepcopy(plain)
    optimizer = adamw(model)
    expected = plainly(plain, adamw(plain), batches(3))
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "100% of plain", work=2_000)
    assert wholly(step, model, optimizer, batches(3)).apart(expected) == []
    assert len(optimizer.state) == 4


class Fork(nn.Module):
    """Some parameters have no part in some steps, and one in none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor, far: bool) -> torch.Tensor:
        return (self.second(self.first(x)) if far else self.first(x))[:, :5]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_without_a_gradient_are_left_alone(accumulate: int) -> None:
    def make(model: nn.Module) -> optim.Optimizer:
        return optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)

    plain = Fork()
    model = copy.deepcopy(plain)
    optimizer = make(model)
    data = [(x, bool(far), y) for (x, y), far in zip(batches(6), (0, 0, 1, 0, 0, 1), strict=True)]
    expected = plainly(plain, make(plain), data, accumulate=accumulate)
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "100% of plain", accumulate=accumulate, work=1_000)
    assert wholly(step, model, optimizer, data).apart(expected) == []
    assert len(optimizer.state) == 4


class Decaying(nn.Module):
    """Changes a parameter in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.weight.data.mul_(0.99)
        return self.layer(x).square().mean()


def test_parameters_are_changed_between_steps_and_not_in_one() -> None:
    model = Decaying()
    step = lowtide.TrainStep(model, None, optim.SGD(model.parameters(), lr=0.1), "1MiB", work=50)
    before = model.layer.weight.clone()
    with pytest.raises(lowtide.CaptureError, match=r"the forward changes the parameter \S*layer.weight itself"):
        step(torch.randn(4, 8))
    assert torch.equal(model.layer.weight, before)
    plain = nn.Linear(8, 1)
    planned = copy.deepcopy(plain)
    updates = optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    step = lowtide.TrainStep(
        planned, lambda y, _: y.square().mean(), optim.SGD(planned.parameters(), lr=0.1, momentum=0.9), "1MiB", work=50
    )
    for _ in range(3):
        x = torch.randn(4, 8)
        updates.zero_grad()
        loss = plain(x).square().mean()
        loss.backward()
        updates.step()
        assert torch.equal(step(x, x), loss)
        for layer in (plain, planned):
            layer.weight.data.mul_(0.9)
        assert torch.equal(plain.weight, planned.weight)
