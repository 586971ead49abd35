"""Results that wait in host memory instead of being recomputed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")


def train(budget: str | int, **options: Any) -> tuple[list[torch.Tensor], lowtide.EagerStats]:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with lowtide.eager(budget, model=model, optimizer=optimizer, **{"policy": "tide", **options}) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(512, 128)).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], run.stats()


def test_what_returns_sooner_from_the_host_waits_there() -> None:
    expected, free = train("1GiB")
    budget_B = int(free.peak_B * 0.7)
    found, near = train(budget_B, host_budget="64MiB", link="100GB/s")
    assert near.fetches > 0
    assert near.recomputations == 0
    assert near.peak_B <= budget_B
    again, far = train(budget_B, host_budget="64MiB", link="10MB/s")
    assert far.fetches == 0 < far.recomputations
    for values in (found, again):
        assert all(torch.equal(a, b) for a, b in zip(expected, values, strict=True))


def test_the_link_is_measured_where_none_is_named() -> None:
    _, free = train("1GiB")
    found = train(int(free.peak_B * 0.7), host_budget="64MiB")[1]
    assert found.sent_B > 0


@pytest.mark.parametrize("policy", ["tide", "tide-memory"])
def test_host_memory_has_a_budget_of_its_own(policy: str) -> None:
    """Some results wait there, the others are recomputed."""
    expected, free = train("1GiB")
    found, run = train(int(free.peak_B * 0.6), host_budget=600_000, link="100GB/s", policy=policy)
    assert run.recomputations > 0 < run.fetches
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_what_waits_is_prefetched_when_the_context_is_left() -> None:
    with lowtide.eager(400_000, policy="tide", host_budget="1MiB", link="100GB/s") as run:
        kept = [torch.full((8192,), float(i)) + 1 for i in range(14)]
        assert run.stats().sent_B > 0
        del kept[6:]
    assert [float(tensor[77]) for tensor in kept] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_policies_that_move_nothing_are_refused() -> None:
    with pytest.raises(lowtide.EagerError, match=r"'coop' offloads nothing: .* tide or tide-memory"):
        lowtide.eager("64MiB", policy="coop", host_budget="64MiB", link="1GB/s")
