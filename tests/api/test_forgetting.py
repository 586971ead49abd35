"""What a session drops: graphs of calls that failed, and shapes that have not been met for long."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import lowtide
from lowtide.api.train_step import session_of
from lowtide.session import active_plans
from lowtide.session.whole_step import Stepping


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Failing(nn.Module):
    """Raises in its own code when told so, behind work that has been traced by then."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.fails = nn.Linear(8, 8), nn.Linear(8, 8), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).sin()
        if self.fails:
            raise ValueError("in the user's code")
        return self.last(h).square().mean()


def failed_calls(model: Failing, x: torch.Tensor, times: int) -> None:
    for _ in range(times):
        model.fails = True
        with pytest.raises(ValueError, match="in the user's code"):
            model(x)
        model.fails = False
        model(x).backward()
    gc.collect()


def test_calls_that_fail_leave_nothing_behind() -> None:
    plain = Failing()
    model, x = lowtide.fit(copy.deepcopy(plain), "64MiB", work=20), torch.randn(4, 8)
    waiting = model(x)  # its backward runs when its code has been given up
    failed_calls(model, x, 5)
    session = model.lowtide.session
    model(x)
    assert len(session.executors) <= 2  # of the call that waits, and of the latest
    assert len(session.active_plans.plans) == len(session.executors)
    assert model.lowtide.calls == 7
    model.zero_grad()
    waiting.backward()
    plain(x).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def _steppings() -> int:
    gc.collect()
    return sum(isinstance(thing, Stepping) for thing in gc.get_objects())


def test_a_step_whose_calls_fail_leaves_nothing_behind() -> None:
    before = _steppings()
    model, x = Failing(), torch.randn(4, 8)
    step = lowtide.TrainStep(model, None, torch.optim.SGD(model.parameters(), lr=0.1), "64MiB", work=20)
    for _ in range(5):
        model.fails = True
        with pytest.raises(ValueError, match="in the user's code"):
            step(x)
        model.fails = False
        step(x)
    gc.collect()
    step(x)
    session = session_of(step)
    assert len(session.executors) == len(session.active_plans.plans) == 1
    assert _steppings() == before + 1


def test_models_that_have_gone_leave_no_compiled_code_behind() -> None:
    model = lowtide.fit(Failing(), "64MiB", work=20)
    model(torch.randn(4, 8)).backward()
    (executor,) = map(weakref.ref, model.lowtide.session.executors)
    del model
    for _ in range(2):  # what was compiled goes when the function that it was compiled for has gone
        gc.collect()
    assert executor() is None


def test_shapes_that_were_not_met_for_long_are_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_plans, "ACTIVE_STEPS", 3)
    plain = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    model = lowtide.fit(copy.deepcopy(plain), "64MiB", work=20, dynamic=True)
    session, batches = model.lowtide.session, [torch.randn(n, 8) for n in (3, 4, 5, 6, 7)]
    first = model(batches[0])  # its backward comes when its shape has been forgotten
    for x in batches[1:]:
        model(x).sum().backward()
    assert len(model.lowtide.plans) == 3
    assert sum(len(e.keys) for e in session.executors) == 3
    model(batches[2]).sum().backward()  # now it is the one that was met last
    first.sum().backward()
    before = [copy.deepcopy(p.grad) for p in model.parameters()]
    model(batches[0]).sum().backward()  # planned again; batch 3 is forgotten
    assert len(model.lowtide.plans) == 3
    for x in (*batches[1:], batches[2], batches[0]):
        plain(x).sum().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(before, plain.parameters(), strict=True))
    plain(batches[0]).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
