"""A budget that was named as the smallest is accepted: again, by another process, whatever the next search finds."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import lowtide
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, PlanRecord, Problem, Status
from lowtide.plan_cache import store
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.record import Constraints, PlanOptions, PlanRequest, make_record
from lowtide.units import Budget
from tests.api.test_equality import smallest
from tests.networks import NETWORKS
from tests.planners.menus import with_backwards
from tests.planners.tape import gpt, random_graph, unet

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = Constraints(outside_B=1000, enforced=True, reserve_B=4096, optimizer_B=640)
GRAPHS = {
    "gpt": lambda: with_backwards(gpt(blocks=2, batch=1, tokens=64, width=64)),
    "unet": lambda: unet(depth=2, batch=1, width=8, side=32),
    "random": lambda: random_graph(3, recipes=12),
}


class FindsNothing(AbstractPlanner):
    """A search that was cut off before it found anything."""

    name: ClassVar[str] = "finds-nothing"

    def refuses(self, problem: Problem) -> str | None:  # noqa: ARG002
        """Nothing."""
        return None

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:  # noqa: ARG002
        """Without a plan, and without a word of what would fit."""
        return Outcome(None, Status.UNSOLVED, self.name)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("scope", ["step", "none"])
def test_a_session_keeps_its_word_whatever_the_next_search_finds(scope: str) -> None:
    network = NETWORKS["tied"]
    fitted = lowtide.fit(network.build(), budget="100% of plain", work=2_000, scope=scope)
    named_B = smallest(fitted, network)
    session = fitted.lowtide.session
    session.options = dataclasses.replace(session.options, planner=FindsNothing())
    assert smallest(fitted, network) == named_B
    fitted.lowtide.set_budget(named_B)
    for batch in network.batches(2):
        network.loss(fitted, batch).backward()
        fitted.zero_grad()
    plan = fitted.lowtide.plan
    assert plan.record.reserved_B <= named_B
    assert plan.record.schedule.steps
    fitted.lowtide.set_budget(named_B - 1_000)
    with pytest.raises(lowtide.InfeasibleBudget, match=f"budget={named_B}"):
        network.loss(fitted, network.batches(1)[0])


def test_a_later_process_is_given_the_plan_that_the_first_one_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOWTIDE_PLAN_CACHE")
    monkeypatch.setattr(store, "cache_folder", lambda _: tmp_path)
    network = NETWORKS["tied"]
    batch = (network.batches(1)[0],)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        lowtide.plan(network.build(), batch, budget=1, work=2_000)
    named_B = caught.value.smallest_B
    assert named_B is not None
    torch._dynamo.reset()
    fitted = lowtide.fit(network.build(), budget=named_B)
    session = fitted.lowtide.session
    session.options = dataclasses.replace(session.options, planner=FindsNothing())
    network.loss(fitted, batch[0]).backward()
    assert fitted.lowtide.plan.record.budget_B == named_B


def record_at(graph: Graph, budget_B: int, constraints: Constraints, known: PlanRecord | None = None) -> PlanRecord:
    """A plan that begins from nothing, as in a new process."""
    options = PlanOptions(budget=Budget(size_B=budget_B), work=500)
    request = PlanRequest(graph=graph, options=options, constraints=constraints, device_B=lambda: 0)
    return make_record(request, known=known)


@pytest.mark.parametrize("constraints", [CONSTRAINTS, Constraints(outside_B=1000)], ids=["enforced", "accounted"])
@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_named_does_not_depend_on_what_was_asked_for(name: str, constraints: Constraints) -> None:
    graph = GRAPHS[name]()
    named: set[int] = set()
    asked_B = 1
    for _ in range(3):
        with pytest.raises(lowtide.InfeasibleBudget) as caught:
            record_at(graph, asked_B, constraints)
        proof = caught.value.proof
        assert isinstance(proof, PlanRecord)
        assert caught.value.smallest_B is not None
        named.add(caught.value.smallest_B)
        asked_B = (asked_B + 3 * max(caught.value.floor_B, proof.peak_B - 4096)) // 4
        if asked_B >= min(named):
            break
    (named_B,) = named
    assert proof.budget_B == named_B
    for known in (None, proof):
        record = record_at(graph, named_B, constraints, known)
        assert record.reserved_B <= named_B
        assert (record.layout is not None) == constraints.enforced
    roomier = dataclasses.replace(constraints, reserve_B=constraints.reserve_B + 64)
    assert record_at(graph, named_B + 64, roomier, proof).reserved_B <= named_B + 64


_NAMING = """
import sys
sys.path.insert(0, {root!r})
import pytest
from tests.conftest import search_briefly
from tests.api.test_named_budgets import name_and_plan
search_briefly(pytest.MonkeyPatch())
print(*name_and_plan(), sep="", end="")
"""


def test_two_processes_name_and_do_the_same() -> None:
    """This one, and one whose order of sets is another."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    done = subprocess.run(
        [sys.executable, "-c", _NAMING.format(root=str(ROOT))],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(name_and_plan())
    assert done.stdout.count("\n") == len(GRAPHS)


def name_and_plan() -> Iterator[str]:
    """What is named for every graph, and the plan at that budget, in a line."""
    for graph in (make() for make in GRAPHS.values()):
        with pytest.raises(lowtide.InfeasibleBudget) as caught:
            record_at(graph, 1, CONSTRAINTS)
        assert caught.value.smallest_B is not None
        record = record_at(graph, caught.value.smallest_B, CONSTRAINTS)
        assert record.layout is not None
        yield f"{caught.value.smallest_B} {record.schedule} {record.layout.offsets_B}\n"


class Averaging(torch.nn.Module):
    """Puts a new tensor in the place of a buffer in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)
        self.register_buffer("mean", torch.zeros(32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        self.mean = self.mean * 0.9 + 0.1 * h.detach()
        return self.last(h - self.mean).square().mean()


@pytest.mark.parametrize("whole", [False, True])
def test_a_buffer_in_the_place_of_another_needs_no_more_than_was_named(whole: bool) -> None:
    def stepped(budget: int) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Averaging()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = lowtide.TrainStep(model, None, optimizer, budget, work=100) if whole else None
        if step is None:
            lowtide.fit(model, budget, optimizer=optimizer, work=100)
        for _ in range(4):
            x = torch.randn(32, 16)
            if step is not None:
                step(x)
            else:
                model(x).backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        stepped(1)
    assert caught.value.smallest_B is not None
    stepped(caught.value.smallest_B)
