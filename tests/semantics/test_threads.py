"""Threads that evaluate, train, or step; several fitted models in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import twin
from tests.semantics.pairs import WORK, Wide, batches, inside, run, same, steps, unlike


class Deep(nn.Module):
    """Layers without randomness: the generator is one for all threads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = F.gelu(layer(h))
        return h


def _in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(call())
        except BaseException as error:  # handed on
            found.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_a_thread_that_evaluates() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        def evaluate() -> torch.Tensor:
            with torch.no_grad():
                return module(batches(1)[0]) + 0

        seen: list[Any] = []
        for x in batches():
            loss = module(x)
            seen.append(_in_a_thread(evaluate))
            loss.backward()
            seen += [loss.detach().clone(), _in_a_thread(evaluate)]
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0.1 * p.grad
            module.zero_grad()
        return seen

    same(lambda: Wide(Deep()), scenario, spare=3.0, recomputes=False)


def test_training_in_another_thread() -> None:
    same(lambda: Wide(Deep()), lambda m: _in_a_thread(lambda: steps()(m)))


def test_a_backward_in_another_thread() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches():
            loss = module(x)
            _in_a_thread(loss.backward)
            seen.append(loss.detach().clone())
            module.zero_grad()
        return seen

    same(lambda: Wide(Deep()), scenario, spare=0.2, recomputes=False)


def test_two_threads_step_one_model_at_once() -> None:
    """Either right, or refused in words: here both threads only compute gradients of fixed weights."""
    torch.manual_seed(0)
    plain = Wide(Deep())
    fitted = lowtide.fit(twin(plain), "300% of plain", work=WORK)
    fitted(batches(1)[0]).backward()
    fitted.zero_grad()
    expected = [torch.autograd.grad(plain(x), list(plain.parameters())) for x in batches(2)]
    found: dict[int, Any] = {}

    def work(index: int) -> None:
        try:
            for _ in range(3):
                found[index] = torch.autograd.grad(fitted(batches(2)[index]), list(fitted.parameters()))
        except lowtide.LowtideError as error:
            found[index] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        if isinstance(found[index], lowtide.LowtideError):
            assert "thread" in str(found[index])
        else:
            assert unlike(expected[index], found[index]) == []
    stats = lowtide.memory_stats(fitted)
    assert stats.reserved_B <= stats.budget_B


def test_two_models_with_a_budget_each() -> None:
    torch.manual_seed(0)
    plain = [Wide(Deep()), Wide(nn.Identity(), width=64)]
    fitted = [lowtide.fit(twin(m), "100% of plain", work=WORK) for m in plain]

    def both(models: list[nn.Module]) -> list[Any]:
        seen: list[Any] = []
        for x in batches():
            first = models[0](x)
            first.backward()
            second = models[1](x)
            second.backward()
            seen += [first.detach().clone(), second.detach().clone()]
            for m in models:
                m.zero_grad()
        return seen

    assert unlike(both(plain), both(fitted)) == []
    for model in fitted:
        inside(model, recomputes=False)


def test_one_model_feeds_another() -> None:
    torch.manual_seed(0)
    plain = [Wide(Deep()), Wide(Deep())]
    first = lowtide.fit(twin(plain[0]), "250% of plain", work=WORK)
    fitted = [first, lowtide.fit(twin(plain[1]), share=first, work=WORK)]

    def chain(models: list[nn.Module]) -> list[Any]:
        seen: list[Any] = []
        for x in batches():
            loss = models[1](x * models[0](x))
            loss.backward()
            seen += [loss.detach().clone(), [p.grad.clone() for m in models for p in m.parameters()]]
            for m in models:
                m.zero_grad()
        return seen

    assert unlike(run(plain[0], lambda _: chain(plain))[0], run(fitted[0], lambda _: chain(fitted))[0]) == []
    for model in fitted:
        inside(model, recomputes=False)
