"""Planning looks and does not touch; fit and plan see the same program; several graphs make one plan."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import NETWORKS, Network, differences, train, twin

MIXED = NETWORKS["mixed"]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_planning_changes_nothing_and_claims_everything() -> None:
    module, batch = MIXED.build(), MIXED.batches(1)[0]
    before = [t.clone() for t in module.state_dict().values()]
    generator = torch.get_rng_state()
    plan = lowtide.plan(module, batch, budget="90% of plain")
    assert all(torch.equal(a, b) for a, b in zip(before, module.state_dict().values(), strict=True))
    assert torch.equal(generator, torch.get_rng_state())
    assert all(p.grad is None for p in module.parameters())
    assert 0 < plan.floor_B <= plan.peak_B <= plan.budget_B
    assert 0 < lowtide.plan(module, batch, budget="1GiB").floor_B <= plan.floor_B
    assert plan.bound_s <= plan.time_s
    assert plan.gap == pytest.approx(plan.time_s / plan.bound_s - 1)
    assert "gradients of one backward pass" in plan.covers.inside
    assert any("no optimizer was given" in text for text in plan.covers.outside)
    assert "networks.py" in plan.explain()


def test_fit_and_plan_capture_the_same_program() -> None:
    module, batch = MIXED.build(), MIXED.batches(1)[0]
    plan = lowtide.plan(module, batch, budget="100% of plain")
    fitted = lowtide.fit(twin(module), budget="100% of plain")
    MIXED.loss(fitted, batch)
    assert fitted.lowtide.plan.record.graph.key == plan.record.graph.key


def test_planning_for_a_machine_that_is_not_here() -> None:
    plan = lowtide.plan(MIXED.build(), MIXED.batches(1)[0], budget="100% of plain", machine="h200")
    assert 0 < plan.time_s < 1


class Interrupted(nn.Module):
    """Layers, Python that Dynamo does not trace, and more layers with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(F.gelu(self.first(x)) * 1.5)
        torch._dynamo.graph_break()
        return F.cross_entropy(self.second(h), y)


def test_a_broken_graph_is_planned_as_one() -> None:
    network = Network("broken", Interrupted, MIXED.outputs, MIXED.batches)
    plain = network.build()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=5_000)
    batches = network.batches(2)
    assert differences(train(plain, network.loss, batches), train(fitted, network.loss, batches)) == []
    plan = fitted.lowtide.plan
    assert [s.name for s in plan.record.graph.segments] == ["forward 1", "forward 2", "backward 2", "backward 1"]
    assert any("between forward and backward" in text for text in plan.covers.inside)
    start = {k: v.clone() for k, v in plain.state_dict().items()}
    fitted.lowtide.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        network.loss(fitted, batches[0])
    fitted.lowtide.set_budget(caught.value.smallest_B)
    fitted.load_state_dict(start)
    assert differences(train(plain, network.loss, batches), train(fitted, network.loss, batches)) == []
    assert fitted.lowtide.plan.peak_B < plan.peak_B


def test_a_fitted_model_is_the_same_model() -> None:
    module, batch = MIXED.build(), MIXED.batches(1)[0]
    names = list(module.state_dict())
    optimizer = torch.optim.AdamW(module.parameters())
    fitted = lowtide.fit(module, budget="100% of plain", optimizer=optimizer)
    assert fitted is module
    assert list(fitted.state_dict()) == names
    MIXED.loss(fitted, batch)
    assert any("optimizer state" in text for text in fitted.lowtide.plan.covers.inside)
    for plain in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert plain.lowtide is None
        torch.manual_seed(0)
        expected = MIXED.loss(fitted, batch).detach()
        torch.manual_seed(0)
        assert torch.equal(MIXED.loss(plain, batch), expected)


def test_shapes_get_plans_of_their_own_and_evaluation_too() -> None:
    network = NETWORKS["tied"]
    plain = network.build()
    fitted = lowtide.fit(twin(plain), budget="100% of plain", work=5_000)
    for length in (12, 20, 20, 9):
        tokens = torch.randint(0, 50, (3, length), generator=torch.Generator().manual_seed(length))
        for module in (plain, fitted):
            torch.manual_seed(length)
            module.zero_grad()
            network.loss(module, tokens).backward()
        pairs = zip(plain.parameters(), fitted.parameters(), strict=True)
        assert all(p.grad is q.grad or torch.equal(p.grad, q.grad) for p, q in pairs)
        evaluated = []
        for module in (plain, fitted):
            torch.manual_seed(length)
            with torch.no_grad():
                evaluated.append(network.loss(module.eval(), tokens))
            module.train()
        assert torch.equal(*evaluated)
    assert len(fitted.lowtide.plans) >= 6
    assert fitted.lowtide.calls == 8


def test_two_fitted_models_keep_their_own_budgets() -> None:
    a, b = (lowtide.fit(MIXED.build(), budget=f"{share}% of plain") for share in (100, 90))
    batch = MIXED.batches(1)[0]
    for module in (a, b):
        MIXED.loss(module, batch).backward()
    assert a.lowtide.plan.budget_B > b.lowtide.plan.budget_B
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)


class Breaking(nn.Module):
    """Two graphs with Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(h).relu().sum()


def test_the_backend_says_that_it_plans_broken_graphs_apart() -> None:
    module, x = Breaking(), torch.ones(3, 4)
    compiled = torch.compile(module, backend="lowtide", options={"budget": "1GiB"})
    with pytest.warns(lowtide.BudgetWarning, match=r"lowtide\.fit"):
        compiled(x).backward()
    expected = torch.autograd.grad(Breaking.forward(module, x), list(module.parameters()))
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), expected, strict=True))


def test_a_saved_plan_is_held_to_the_budget_given_with_it() -> None:
    module, batch = MIXED.build(), MIXED.batches(1)[0]
    roomy = lowtide.plan(module, batch, budget=2**50)
    fitted = lowtide.fit(module, plan=roomy, budget=roomy.reserved_B)
    MIXED.loss(fitted, batch)
    assert fitted.lowtide.plan.budget_B == roomy.reserved_B
    assert lowtide.memory_stats(fitted).reserved_B <= roomy.reserved_B
