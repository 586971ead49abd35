"""Loops as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import swa_utils

import lowtide
from tests.networks import twin
from tests.semantics.pairs import WORK, Wide, batches, gradients, inside, run, same, tighten, unlike


class Middle(nn.Module):
    """Batch norm and dropout, so that modes matter."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.norm(F.gelu(self.two(F.gelu(self.one(h))))), 0.2, self.training)


def make() -> nn.Module:
    """The model of this file."""
    return Wide(Middle())


def _loss(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = module(x)
    loss.backward()
    return loss.detach().clone()


Loop = Callable[[nn.Module, torch.optim.Optimizer], list[Any]]


def with_optimizer(
    loop: Loop, kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, spare: float = 0.3, **options: Any
) -> nn.Module:
    """The loop with a plain model, and with a fitted one whose optimizer counts."""
    torch.manual_seed(0)
    plain = make().train()
    fitted = twin(plain)
    optimizers = [kind(m.parameters(), lr=0.01, **options) for m in (plain, fitted)]
    expected = run(plain, lambda m: loop(m, optimizers[0]))
    lowtide.fit(fitted, 1, optimizer=optimizers[1], work=WORK)
    tighten(fitted, lambda m: m(batches(1)[0]), spare)
    assert unlike(expected, run(fitted, lambda m: loop(m, optimizers[1]))) == []
    inside(fitted)
    return fitted


def test_accumulation_with_evaluation_in_between() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        for index, x in enumerate(batches(6)):
            seen.append(_loss(module, x))
            if index % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=index == 2)
            module.eval()
            with torch.no_grad() if index % 2 else torch.inference_mode():
                seen.append(module(x[:100]).clone())
            module.train()
        return [s.detach().clone() for s in seen]

    with_optimizer(loop)


def test_evaluation_between_forward_and_backward() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        other = batches(1)[0].flip(0)
        for x, mode in zip(batches(4), (torch.no_grad, torch.inference_mode) * 2, strict=True):
            loss = module(x)
            module.eval()
            with mode():
                seen.append(module(other) + 0)
            module.train()
            loss.backward()
            seen += [loss.detach(), gradients(module)]
            module.zero_grad()
        return [s.clone() if isinstance(s, torch.Tensor) else s for s in seen]

    same(lambda: Wide(nn.Identity()), scenario, spare=0.8, recomputes=False)


def test_training_without_gradients_and_evaluating_with_them() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            with torch.no_grad():
                seen.append(module(x) + 0)
            module.eval()
            seen.append(_loss(module, x))
            module.train()
            seen.append(_loss(module, x))
            optimizer.step()
            optimizer.zero_grad()
        return seen

    with_optimizer(loop)


@pytest.mark.parametrize("clip", ["norm", "value", "agc"])
def test_clipped_gradients(clip: str) -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        for x in batches():
            seen.append(_loss(module, x))
            if clip == "norm":
                seen.append(nn.utils.clip_grad_norm_(module.parameters(), 0.01).clone())
            elif clip == "value":
                nn.utils.clip_grad_value_(module.parameters(), 1e-4)
            else:
                from timm.utils import adaptive_clip_grad

                adaptive_clip_grad(module.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
        return seen

    with_optimizer(loop)


def test_schedules_groups_and_other_optimizers() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        extra = nn.Parameter(torch.ones(3))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for index, x in enumerate(batches(6)):
            seen.append(_loss(module, x))
            extra.grad = torch.ones(3)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if index == 2:
                optimizer.add_param_group({"params": [extra], "lr": 0.5})
        other = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        for x in batches(2):
            seen.append(_loss(module, x))
            other.step()
            other.zero_grad()
        return [*seen, extra.detach().clone(), schedule.get_last_lr()]

    with_optimizer(loop)


def test_closures() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = module(x)
                loss.backward()
                seen.append(loss.detach().clone())
                return loss

            seen.append(optimizer.step(closure).detach().clone())
        return seen

    with_optimizer(loop, torch.optim.LBFGS, max_iter=3, history_size=4)


def test_averaged_copies() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        average = swa_utils.AveragedModel(module, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
        for x in batches():
            seen.append(_loss(module, x))
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(module)
            with torch.no_grad():
                seen.append(average(x).clone())
        swa_utils.update_bn([(x,) for x in batches(2)], average)
        return [*seen, *(p.detach().clone() for p in average.parameters()), *(b.clone() for b in average.buffers())]

    with_optimizer(loop)


class Choosing(nn.Module):
    """Chooses by data, prints and logs in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.one(h))
        print("mean", round(h.mean().item(), 3))  # noqa: T201
        return torch.tanh(self.two(h) if h.sum() < 1e9 else h * 2)


@pytest.mark.filterwarnings("ignore:the model breaks into several graphs:lowtide.BudgetWarning")
def test_choices_and_printing(capsys: pytest.CaptureFixture[str]) -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen = []
        for x in batches(2):
            seen.append(_loss(module, x))
        return seen

    same(lambda: Wide(Choosing()), scenario, spare=1.0, recomputes=False)
    assert "mean" in capsys.readouterr().out
