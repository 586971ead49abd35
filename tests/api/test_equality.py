"""Training under a budget is training: bit for bit, at every budget, captured once and replanned."""

from __future__ import annotations

import pytest
import torch

import lowtide
from lowtide.device.observer import observe
from lowtide.report.implementations import implementations
from tests.networks import NETWORKS, Network, Trace, differences, train, twin

ALPHAS = (0.75, 0.25, 0.05)
CASES = [
    *((n, False) for n in NETWORKS if n != "resnet"), ("mixed", True), ("tied", True),
    *(pytest.param(*case, marks=pytest.mark.breadth) for case in (("resnet", False), ("gpt2", True))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def smallest(fitted: torch.nn.Module, network: Network) -> int:
    """The smallest budget that lowtide itself names, by asking for one byte."""
    fitted.lowtide.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        network.loss(fitted, network.batches(1)[0])
    assert caught.value.smallest_B is not None
    return caught.value.smallest_B


@pytest.mark.parametrize(("name", "autocast"), CASES)
def test_training_is_unchanged_at_every_budget(name: str, autocast: bool) -> None:
    network = NETWORKS[name]
    plain = network.build()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=5_000)
    start = {k: v.clone() for k, v in plain.state_dict().items()}
    batches = network.batches(3)
    expected = train(plain, network.loss, batches, autocast)
    assert differences(expected, train(fitted, network.loss, batches, autocast)) == []
    keep_all_B = fitted.lowtide.plan.record.keep_all_peak_B
    low_B = smallest_under(fitted, network, autocast)
    recomputed = others = 0
    for alpha in ALPHAS:
        fitted.load_state_dict(start)
        fitted.lowtide.set_budget(int(low_B + alpha * (keep_all_B - low_B)))
        assert differences(expected, train(fitted, network.loss, batches, autocast)) == [], f"alpha {alpha}"
        plan = fitted.lowtide.plan
        assert plan.peak_B <= plan.budget_B
        recomputed = max(recomputed, sum(type(s).__name__ == "Run" for s in plan.record.schedule.steps))
        others += len(implementations(plan.record).sites)
    assert others > 0, "every call site ran what the program runs"
    assert recomputed > len(plan.record.graph.program) or low_B >= keep_all_B * 0.99


def smallest_under(fitted: torch.nn.Module, network: Network, autocast: bool) -> int:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return smallest(fitted, network)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.breadth) if n in ("resnet", "unet") else n for n in NETWORKS]
)
def test_the_peak_is_what_was_predicted(name: str) -> None:
    network = NETWORKS[name]
    fitted = lowtide.fit(network.build(), budget="100% of plain", work=5_000)
    batch = network.batches(1)[0]

    def outputs_held() -> None:
        hold = network.outputs(fitted, batch)
        network.loss_in(hold).backward()

    outputs_held()
    low_B = smallest(fitted, network)
    high_B = fitted_peak(fitted, outputs_held)
    for budget_B in (high_B, (low_B + high_B) // 2, low_B):
        fitted.lowtide.set_budget(budget_B)
        outputs_held()
        for parameter in fitted.parameters():
            parameter.grad = None
        with observe() as seen:
            outputs_held()
        for parameter in fitted.parameters():
            parameter.grad = None
        record = fitted.lowtide.plan.record
        predicted_B = record.peak_B - record.graph.persistent_B - record.outside_B
        assert abs(seen.peak_B - predicted_B) <= 0.01 * predicted_B + 64


def fitted_peak(fitted: torch.nn.Module, step: object) -> int:
    fitted.lowtide.set_budget("100% of plain")
    step()  # type: ignore[operator]
    return int(fitted.lowtide.plan.peak_B)


def test_a_trace_tells_differences() -> None:
    network = NETWORKS["tied"]
    plain: Trace = train(network.build(), network.loss, network.batches(1))
    other = network.build()
    with torch.no_grad():
        other.out.weight[0, 0] += 1
    assert differences(plain, train(other, network.loss, network.batches(1)))
