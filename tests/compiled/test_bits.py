"""Inductor's kernels under a budget: the bits of `torch.compile(model)` at every budget, and bytes as predicted.

A network is compiled once by `torch.compile` and once for lowtide; every budget after that is a plan alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device.observer import observe
from lowtide.ir.fidelity import COMPILED
from tests.conftest import search_briefly
from tests.networks import NETWORKS, Network

STEPS = 10


@dataclass(frozen=True)
class Case:
    """A network as torch.compile trains it, and fitted.

    Arguments:
        expected: losses, parameters and buffers after ten steps.
        start: what it began from.
    """

    network: Network
    autocast: bool
    fitted: nn.Module
    start: dict[str, torch.Tensor]
    expected: list[torch.Tensor]

    def trained(self) -> list[torch.Tensor]:
        self.fitted.load_state_dict(self.start)
        return steps(self.network, self.fitted, self.fitted, self.autocast)


def steps(network: Network, model: nn.Module, call: Any, autocast: bool = False) -> list[torch.Tensor]:
    """Ten steps of AdamW on batches of their own, each from its own seed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for seed, batch in enumerate(network.batches(STEPS)):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = network.loss(call, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [torch.stack(losses), *(t.detach().clone() for t in (*model.parameters(), *model.buffers()))]


def same(expected: list[torch.Tensor], found: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.fixture(scope="module", autouse=True)
def _brief() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        search_briefly(patch)
        yield


BREADTH = ("tied", "unet", "gpt2", "resnet")


@pytest.fixture(
    scope="module",
    params=[
        ("mixed", False),
        *(pytest.param((name, False), marks=pytest.mark.breadth) for name in BREADTH),
        *(pytest.param((name, True), marks=pytest.mark.breadth) for name in ("mixed", *BREADTH)),
    ],
    ids=lambda case: f"{case[0]}-{'bfloat16' if case[1] else 'float32'}",
)
def case(request: pytest.FixtureRequest) -> Case:
    name, autocast = request.param
    network = NETWORKS[name]
    torch._dynamo.reset()
    model = network.build()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    expected = steps(network, model, torch.compile(model), autocast)
    torch._dynamo.reset()
    fitted = lowtide.fit(network.build(), budget="100% of plain", compiler="inductor", work=5_000)
    return Case(network, autocast, fitted, start, expected)


def test_the_bits_are_those_of_torch_compile_at_every_budget(case: Case) -> None:
    case.fitted.lowtide.set_budget("100% of plain")
    assert same(case.expected, case.trained())
    record = case.fitted.lowtide.plan.record
    assert record.fidelity.reference == COMPILED
    fixed_B, all_B = record.fixed_B, record.reserved_B
    smallest_B = None
    recomputed = False
    for share in (0.7, 0.5, 0.35, 0.0):
        case.fitted.lowtide.set_budget(int(fixed_B + share * (all_B - fixed_B)) if share else fixed_B + 1)
        try:
            assert same(case.expected, case.trained()), share
        except lowtide.InfeasibleBudget as error:
            smallest_B = error.smallest_B
            break
        recomputed |= case.fitted.lowtide.plan.record.overhead > 0
    assert smallest_B is not None
    case.fitted.lowtide.set_budget(smallest_B)
    assert same(case.expected, case.trained())
    assert recomputed or case.fitted.lowtide.plan.record.overhead > 0
    assert case.fitted.lowtide.plan.record.reserved_B <= smallest_B


def test_the_peak_is_what_was_predicted(case: Case) -> None:
    case.fitted.lowtide.set_budget("100% of plain")
    batch = case.network.batches(1)[0]

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.autocast):
            outputs = case.network.outputs(case.fitted, batch)
        case.network.loss_in(outputs).backward()

    step()
    case.fitted.zero_grad()
    with observe() as seen:
        step()
    case.fitted.zero_grad()
    record = case.fitted.lowtide.plan.record
    predicted_B = record.peak_B - record.graph.persistent_B - record.outside_B
    assert abs(seen.peak_B - predicted_B) <= 0.01 * predicted_B + 64


def test_kernels_are_named_by_their_operators_and_the_users_lines(case: Case) -> None:
    case.fitted.lowtide.set_budget("100% of plain")
    case.trained()
    graph = case.fitted.lowtide.plan.record.graph
    fused = [r for r in graph.recipes if r.op.startswith("compiled.cpp_fused")]
    assert fused
    assert all(r.origin.source and r.origin.text for r in fused if "cross_entropy" not in r.op and "_relu" in r.op)
