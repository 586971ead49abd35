"""Backwards run on the calling thread while a window is open, and torch's setting is the user's when they end.

On CPU they do anyway: here its device type is named among those of which autograd has threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import calling_thread
from lowtide.runtime import hard_budget


def is_on() -> bool:
    return bool(torch.autograd.is_multithreading_enabled())


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert is_on()
    monkeypatch.setattr(hard_budget, "_ENGINE_THREADS", frozenset({"cpu"}))
    yield
    assert is_on()


def fitted() -> nn.Module:
    torch.manual_seed(0)
    return lowtide.fit(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), "8MiB", work=20)


def test_while_a_backward_runs_and_no_longer() -> None:
    model, batch = fitted(), torch.randn(32, 64)
    seen: list[bool] = []
    for run in (torch.Tensor.backward, lambda loss: torch.autograd.grad(loss, list(model.parameters()))):
        loss = model(batch).square().mean()
        loss.register_hook(lambda _: seen.append(is_on()))
        run(loss)
        assert is_on()
    assert seen == [False, False]
    lowtide.unfit(model)


def test_backwards_that_have_nothing_to_do_with_a_window_are_torchs() -> None:
    model, batch = fitted(), torch.randn(32, 64)
    model(batch).square().mean().backward()
    seen: list[bool] = []
    other = torch.randn(4, requires_grad=True).sum()
    other.register_hook(lambda _: seen.append(is_on()))
    other.backward()
    assert seen == [True]
    lowtide.unfit(model)


def test_after_a_backward_that_raises() -> None:
    model = fitted()
    loss = model(torch.randn(32, 64)).square().mean()

    def fail(_: torch.Tensor) -> None:
        assert not is_on()
        raise ZeroDivisionError

    loss.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert is_on()
    del loss
    lowtide.unfit(model)


def test_a_setting_of_the_users_stays() -> None:
    model = fitted()
    with torch.autograd.set_multithreading_enabled(False):
        model(torch.randn(32, 64)).square().mean().backward()
        assert not is_on()
    lowtide.unfit(model)


def test_each_thread_has_its_own() -> None:
    seen: list[bool] = []

    def elsewhere() -> None:
        loss = torch.randn(4, requires_grad=True).sum()
        loss.register_hook(lambda _: seen.append(is_on()))
        loss.backward()

    calling_thread.hold()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    elsewhere()
    calling_thread.release()
    assert seen == [True, False]
