"""Training inside a budget leaves the same bits as training without one, with every network and every policy."""

from __future__ import annotations

import functools

import pytest
import torch

import lowtide
from lowtide.api.eager import Eager
from lowtide.device import shim
from tests.eager_engine.comparison import Left, differences, train
from tests.eager_engine.networks import NETWORKS
from tests.oracle.policies.catalogue import POLICIES

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
SHARE = 0.75  # of the peak without pressure
SHARES = {"treelstm": 0.85}
STEPS = {"mlp": 10}


@functools.cache
def plain(name: str) -> Left:
    return train(NETWORKS[name], STEPS.get(name, 3))


@functools.cache
def peak_B(name: str) -> int:
    """What it takes where everything fits; that leaves the same bits, too."""
    left, run = trained(name, 2**28, "lru")
    assert not differences(plain(name), left)
    return run.stats().peak_B


def trained(name: str, budget_B: int, policy: str) -> tuple[Left, Eager]:
    runs: list[Eager] = []

    def inside(module: torch.nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]) -> Eager:
        runs.append(lowtide.eager(budget_B, policy=policy, model=module, optimizer=optimizers))
        return runs[0]

    return train(NETWORKS[name], STEPS.get(name, 3), inside), runs[0]


def more(names: set[str], first: set[str]) -> list[object]:
    """Parameters of which only the first are tried every time."""
    return [pytest.param(n, marks=() if n in first else pytest.mark.breadth) for n in sorted(names)]


@pytest.mark.parametrize("name", more(NETWORKS.keys() - {"mlp"}, {"resnet", "gan", "bilstm", "branches"}))
def test_bits_of_every_network(name: str) -> None:
    budget_B = int(SHARES.get(name, SHARE) * peak_B(name))
    left, run = trained(name, budget_B, "tide")
    assert not differences(plain(name), left)
    stats = run.stats()
    assert stats.recomputations > 0
    assert stats.peak_B <= budget_B
    assert stats.spilled_B == 0


@pytest.mark.parametrize("policy", more(POLICIES.keys() - {"tide-memory", "coop-no-in-place"}, {"dtr", "coop", "tide"}))
def test_bits_of_ten_steps_under_every_policy(policy: str) -> None:
    budget_B = int(SHARE * peak_B("mlp"))
    left, run = trained("mlp", budget_B, policy)
    assert not differences(plain("mlp"), left)
    assert run.stats().recomputations > 0
    assert run.stats().peak_B <= budget_B


def test_equal_runs_decide_equally() -> None:
    budget_B = int(SHARE * peak_B("branches"))
    first, again = (trained("branches", budget_B, "coop")[1].stats() for _ in range(2))
    assert first.digest == again.digest
    assert first.peak_B == again.peak_B


def test_moves_are_weighed_against_what_they_save() -> None:
    """Blocks that slid again and again to spare a few evictions took longer than these saved."""
    stats = trained("gpt2", int(0.7 * peak_B("gpt2")), "tide")[1].stats()
    assert stats.evicted_B > 0
    assert stats.moved_B < stats.evicted_B
