"""Ranks of which one cannot go on: none hangs, and each says what it is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.device import shim
from lowtide.ir.text import dumps
from tests.ranks import on_two_ranks

pytestmark = [
    pytest.mark.skipif(not shim.available(), reason="no arena here"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here"),
]
WIDTH, ROWS = 32, 64
SECONDS = 30  # torch's own time-out is sixty times as long


def _net(depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def _fitted(budget: str = "1GiB", net: nn.Module | None = None) -> nn.Module:
    torch._dynamo.reset()
    return lowtide.fit(DistributedDataParallel(_net() if net is None else net), budget, work=50)


def _batch(rows: int = ROWS) -> Tensor:
    return torch.ones(rows, WIDTH) * (1 + dist.get_rank())


def _end(step: Callable[[], object]) -> tuple[str, str, float]:
    """How a step ends on this rank: the error's type, its text, and after how many seconds."""
    begun = time.monotonic()
    try:
        step()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return "no error", "", time.monotonic() - begun


def _one_with_less_memory() -> dict[str, Any]:
    model = _fitted("1KiB" if dist.get_rank() else "1GiB")
    refused = _end(lambda: model(_batch()))
    return {"refused": refused, "forwards": model.lowtide.calls}


def _smaller_budget_holds() -> dict[str, Any]:
    model = _fitted("20MiB" if dist.get_rank() else "1GiB")
    model(_batch()).square().backward(torch.ones(ROWS, WIDTH))
    plan = model.lowtide.plan
    return {"budget_B": plan.budget_B, "schedule": dumps(plan.record.schedule)}


def _other_code() -> dict[str, Any]:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).sin() if dist.get_rank() else self.net(x)

    model = _fitted(net=Other())
    return {"refused": _end(lambda: model(_batch())), "forwards": model.lowtide.calls}


def _one_raises_before() -> dict[str, Any]:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 3:
                raise ValueError("an odd batch")
            return self.net(x)

    model = _fitted(net=Other())
    model(_batch()).sum().backward()
    refused = _end(lambda: model(_batch(3 if dist.get_rank() else ROWS)))
    model(_batch()).sum().backward()  # they go on
    return {"refused": refused, "sum": sum(float(p.grad.sum()) for p in model.parameters())}


def _changing_sizes() -> dict[str, Any]:
    """Sizes that change from step to step, and from rank to rank: gradients as without lowtide."""
    found = []
    rows = [(16, 16), (24, 24), (16, 40), (24, 24), (40, 16), (56, 56), (56, 8)]
    for fit in (False, True):
        torch._dynamo.reset()
        model: nn.Module = DistributedDataParallel(_net())
        if fit:
            model = lowtide.fit(model, "1GiB", work=50)
        gradients = []
        for each in rows:
            model.zero_grad()
            model(_batch(each[dist.get_rank()])).square().sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        found.append(gradients)
    same = all(torch.equal(a, b) for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))
    return {"same": same, "votes": model.lowtide.session.agreement.votes}


def _evaluation_by_one() -> dict[str, Any]:
    model = _fitted()
    model(_batch()).sum().backward()
    if dist.get_rank() == 0:
        with torch.no_grad():
            model(_batch(5))
        model.eval()
        model(_batch(7))
        model.train()
    model(_batch()).sum().backward()
    return {"votes": model.lowtide.session.agreement.votes}


def _in_turn() -> dict[str, Any]:
    scenarios = (
        _one_with_less_memory,
        _smaller_budget_holds,
        _other_code,
        _one_raises_before,
        _changing_sizes,
        _evaluation_by_one,
    )
    return {s.__name__.strip("_"): s() for s in scenarios}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(_in_turn, tmp_path_factory.mktemp("ranks"))


def test_a_rank_with_less_memory_is_named_on_all(answers: list[dict[str, Any]]) -> None:
    first, second = (a["one_with_less_memory"] for a in answers)
    assert first["refused"][:2] == second["refused"][:2]
    assert first["refused"][0] == "InfeasibleBudget"
    assert "Rank 1 limits" in first["refused"][1]
    assert first["forwards"] == second["forwards"] == 0


def test_the_smallest_budget_is_everybodys(answers: list[dict[str, Any]]) -> None:
    first, second = (a["smaller_budget_holds"] for a in answers)
    assert first["budget_B"] == second["budget_B"] == 20 << 20
    assert first["schedule"] == second["schedule"]


def test_a_rank_with_other_code_is_named_on_all(answers: list[dict[str, Any]]) -> None:
    first, second = (a["other_code"] for a in answers)
    assert first["refused"][:2] == second["refused"][:2]
    assert first["refused"][0] == "RanksError"
    assert "the model on rank 1 is another program than on rank 0" in first["refused"][1]
    assert first["forwards"] == second["forwards"] == 0


def test_a_rank_that_raises_before_the_step_holds_nobody_up(answers: list[dict[str, Any]]) -> None:
    first, second = (a["one_raises_before"] for a in answers)
    assert first["refused"][0] == "RanksError"
    assert "rank 1 cannot take this step" in first["refused"][1]
    assert "an odd batch" in first["refused"][1]
    assert second["refused"][:2] == ("ValueError", "an odd batch")
    assert max(first["refused"][2], second["refused"][2]) < SECONDS
    assert first["sum"] == second["sum"]


def test_sizes_may_change_from_step_to_step_and_from_rank_to_rank(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["changing_sizes"]["same"]
        assert answer["changing_sizes"]["votes"] >= 4


def test_one_rank_may_evaluate_alone(answers: list[dict[str, Any]]) -> None:
    assert all(a["evaluation_by_one"]["votes"] for a in answers)


def _raises_inside() -> tuple[str, str, float]:
    """The backward of rank 1 raises behind the roll call; rank 0 waits in the reduction of its gradients."""
    model = _fitted()
    model(_batch()).sum().backward()
    loss = model(_batch()).sum()
    if dist.get_rank():
        fail = ValueError("a bad day")

        def failing(*_: object) -> None:
            raise fail

        for executor in model.lowtide.session.executors:
            for loaded in executor._recent.values():
                loaded.segments = (loaded.segments[0], failing)
    found = _end(loss.backward)
    if dist.get_rank():
        time.sleep(12)  # as a process that lives on
    return found


def _is_killed() -> tuple[str, str, float]:
    model = _fitted()
    model(_batch()).sum().backward()
    if dist.get_rank():
        os.kill(os.getpid(), signal.SIGKILL)
    return _end(lambda: model(_batch()))


def _on_one_page(text: str) -> str:
    return " ".join(text.split())


def test_a_backward_that_raises_ends_the_others_within_seconds(tmp_path: Path) -> None:
    first, second = on_two_ranks(_raises_inside, tmp_path)
    assert second[:2] == ("ValueError", "a bad day")
    assert first[0] in ("RanksError", "RuntimeError")
    assert "rank 1 raised ValueError: a bad day" in _on_one_page(first[1])
    assert first[2] < SECONDS


def test_a_rank_that_is_killed_ends_the_others_within_seconds(tmp_path: Path) -> None:
    first, second = on_two_ranks(_is_killed, tmp_path)
    assert second is None
    # In DDP's own collective before the model is called gloo says it, in the roll call lowtide does.
    assert first[0] in ("RuntimeError", "RanksError")
    assert "by peer" in first[1] or "a rank of this group has ended" in first[1]
    assert first[2] < SECONDS
