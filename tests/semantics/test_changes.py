"""A model that changes after its first call: the next call is that of the changed model."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import twin
from tests.semantics.pairs import WORK, Wide, batches, gradients, same, steps


class Parts(nn.Module):
    """Layers, a frozen one, buffers that change, and a switch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
        self.two.requires_grad_(False)
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.2)
        self.register_buffer("mean", torch.zeros(32))
        self.register_buffer("unsaved", torch.ones(32), persistent=False)
        self.scale = 1.0
        self.act: Callable[[torch.Tensor], torch.Tensor] = F.gelu

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = self.act(self.one(h)) * self.scale
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        self.unsaved = self.unsaved * 1.5
        return self.drop(self.norm(self.act(self.two(h)))) - self.mean * self.unsaved


def _step(module: nn.Module, x: torch.Tensor) -> list[Any]:
    loss = module(x)
    loss.backward()
    found = [loss.detach().clone(), gradients(module)]
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
    module.zero_grad()
    return found


def _replaces_a_parameter(module: nn.Module) -> None:
    module.middle.one.weight = nn.Parameter(module.middle.one.weight.detach() * 0.5)


def _replaces_data(module: nn.Module) -> None:
    module.middle.one.weight.data = module.middle.one.weight.data * 0.5


def _thaws(module: nn.Module) -> None:
    module.middle.two.requires_grad_(True)


def _freezes(module: nn.Module) -> None:
    module.middle.one.requires_grad_(False)


def _swaps_a_submodule(module: nn.Module) -> None:
    torch.manual_seed(9)
    module.middle.two = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 32))


def _swaps_one_of_the_same_class(module: nn.Module) -> None:
    torch.manual_seed(9)
    module.middle.two = nn.Linear(32, 32)


def _changes_attributes(module: nn.Module) -> None:
    module.middle.scale = 0.5
    module.middle.act = torch.tanh


def _changes_the_rate(module: nn.Module) -> None:
    module.middle.drop.p = 0.6


def _registers_a_buffer(module: nn.Module) -> None:
    module.middle.register_buffer("unsaved", torch.full((32,), 0.25), persistent=False)


def _evaluates(module: nn.Module) -> None:
    module.eval()


def _half_evaluates(module: nn.Module) -> None:
    module.middle.norm.eval()


def _replaces_the_forward(module: nn.Module) -> None:
    before = module.middle.forward
    module.middle.forward = lambda h: before(h) * 0.5


def _converts(module: nn.Module) -> None:
    module.middle.double()
    module.middle.register_forward_pre_hook(lambda _m, args: (args[0].double(),))
    module.middle.register_forward_hook(lambda _m, _args, out: out.float())


def _grows(module: nn.Module) -> None:
    torch.manual_seed(9)
    module.last = nn.Linear(32, 16)


CHANGES = (
    _replaces_a_parameter, _replaces_data, _thaws, _freezes, _swaps_a_submodule, _swaps_one_of_the_same_class,
    _changes_attributes, _changes_the_rate, _registers_a_buffer, _evaluates, _half_evaluates, _replaces_the_forward,
    _converts, _grows,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__.strip("_"))
def test_a_change_after_the_first_call(change: Callable[[nn.Module], None]) -> None:
    def scenario(module: nn.Module) -> list[Any]:
        found = [_step(module, x) for x in batches(2)]
        change(module)
        torch.manual_seed(5)
        return [*found, *(_step(module, x) for x in batches(2))]

    same(lambda: Wide(Parts()), scenario, spare=1.2, recomputes=False)


def test_names_are_kept_and_states_load_in_mid_training() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        found = [_step(module, x) for x in batches(2)]
        saved = io.BytesIO()
        torch.save(module.state_dict(), saved)
        kept = copy.deepcopy(module.state_dict())
        found += [_step(module, x) for x in batches(2)]
        saved.seek(0)
        state = torch.load(saved)
        assert list(state) == list(kept)
        module.load_state_dict(state)
        found += [_step(module, x) for x in batches(2)]
        module.load_state_dict(kept, assign=True)
        found += [_step(module, x) for x in batches(2)]
        return [*found, list(state), [n for n, _ in module.named_parameters()]]

    fitted = same(lambda: Wide(Parts()), scenario, spare=0.5)
    assert list(fitted.state_dict()) == list(Wide(Parts()).state_dict())


def test_a_copy_is_a_plain_model() -> None:
    torch.manual_seed(0)
    fitted = lowtide.fit(Wide(Parts()), "110% of plain", work=WORK)
    steps(2)(fitted)
    copied = copy.deepcopy(fitted)
    assert getattr(copied, "lowtide", None) is None
    assert copied._compiled_call_impl is None
    calls = fitted.lowtide.calls
    torch.manual_seed(1)
    expected = _step(copied, batches(1)[0])
    assert fitted.lowtide.calls == calls
    torch.manual_seed(1)
    found = _step(fitted, batches(1)[0])
    assert torch.equal(expected[0], found[0])
    again = lowtide.fit(copied, "110% of plain", work=WORK)
    _step(again, batches(1)[0])
    assert again.lowtide.calls == 1


def test_a_saved_model_is_a_plain_one() -> None:
    torch.manual_seed(0)
    fitted = lowtide.fit(Wide(nn.Identity()), "110% of plain", work=WORK)
    steps(2)(fitted)
    saved = io.BytesIO()
    torch.save(fitted, saved)
    saved.seek(0)
    found = torch.load(saved, weights_only=False)
    assert found.lowtide is None
    assert torch.equal(found(batches(1)[0]), fitted(batches(1)[0]))
    assert torch.equal(twin(found)(batches(1)[0]), fitted(batches(1)[0]))
