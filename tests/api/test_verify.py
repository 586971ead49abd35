"""`lowtide.verify` and `fit(verify=True)`: what is compared, what is named, and that nothing of the model changes."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.api.verify import verified_steps
from lowtide.errors import LowtideError, VerificationError
from lowtide.runtime import writer


class Layers(nn.Module):
    """Dropout, batch norm and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 16)
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.relu(self.norm(self.first(x)))
        return {"y": self.last(nn.functional.dropout(x, 0.1)), "rows": x.argmax(1)}


class Sine(nn.Module):
    """One operator per line."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        x = torch.sin(x)
        return torch.cos(x)


class Counted(nn.Module):
    """Computes something else at every call, in a counter that is not the model's."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.calls += 1
        x = self.layer(x)
        return x * Counted.calls


class Broken(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.a(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.b(x))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


SEEN = 20
"""A bit of a float32 that changes it by 6 to 12 %: no operator after it rounds that away, as it may the lowest bit."""


def off_by_a_bit(operator: str, monkeypatch: pytest.MonkeyPatch, planned: bool = False, bit: int = SEEN) -> None:
    """Makes an operator wrong in one bit of its result, wherever lowtide runs it.

    Arguments:
        planned: only where there is an arena, so that the captured program itself is right.
        bit: which one; 0 is the lowest.
    """
    resolve = writer.Writer.operator

    def wrong(self: writer.Writer, op: str) -> str:
        name = resolve(self, op)
        right = self.scope[name]
        if op == operator and (self.marked or not planned) and getattr(right, "__name__", "") != "<lambda>":
            self.scope[name] = lambda *args, **kwargs: _flipped(right(*args, **kwargs), bit)
        return name

    monkeypatch.setattr(writer.Writer, "operator", wrong)


def _flipped(result: torch.Tensor, bit: int) -> torch.Tensor:
    result.view(-1)[3:4].view(torch.int32).bitwise_xor_(1 << bit)
    return result


def line_of(text: str) -> str:
    """Where a line of this file stands, as plans name it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"api/test_verify.py:{1 + next(i for i, found in enumerate(lines) if found.strip() == text)}"


def test_equal_steps_are_equal_and_nothing_of_the_model_changes() -> None:
    model, x = Layers(), torch.randn(512, 16, requires_grad=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    model.last.weight.grad = torch.ones(16, 16)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    verify = lowtide.verify  # what is imported with it draws from Python's generator
    generators = torch.get_rng_state(), random.getstate()
    found = verify(model, (x,), budget="90% of plain", optimizer=optimizer, work=100)
    assert found.equal, found.explain()
    assert found.kept
    assert found.compared["output"] == 2
    assert found.compared["gradient"] == 6  # five of parameters, one of the input
    assert found.compared["buffer"] == 3
    assert found.compared["optimizer state"] == 5
    assert found.compared["generator"] >= 2
    assert found.plan is not None
    assert 0 < found.plan.reserved_B <= found.plan.budget_B
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert torch.equal(model.last.weight.grad, torch.ones(16, 16))
    assert model.first.weight.grad is None
    assert x.grad is None
    assert not optimizer.state
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1] == random.getstate()
    assert getattr(model, "lowtide", None) is None
    assert max(map(len, found.explain().splitlines())) <= 79
    assert '"equal": true' in found.to_json()


def test_an_operator_that_the_plan_gets_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    off_by_a_bit("aten.sin.default", monkeypatch, planned=True)
    found = lowtide.verify(Sine(), (torch.randn(4, 8),), budget="100% of plain", work=100, without=["in-place"])
    assert not found.equal
    assert found.plain_agrees
    assert found.first is not None
    assert found.first.operator == "aten.sin.default"
    assert found.first.origin.source == line_of("x = torch.sin(x)")
    assert found.first.difference is not None
    assert (found.first.difference.elements, found.first.difference.of) == (1, 32)
    assert 0 < found.first.difference.largest < 0.13
    assert "as it was captured" in found.first.cause
    assert {"output", "gradient of inner.weight"} <= {d.name for d in found.differences}
    assert "Different" in found.explain()


def test_the_lowest_bit_of_a_result_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    off_by_a_bit("aten.cos.default", monkeypatch, planned=True, bit=0)
    found = lowtide.verify(Sine(), (torch.randn(4, 8),), budget="100% of plain", work=100, without=["in-place"])
    assert not found.equal
    assert found.first is not None
    assert found.first.operator == "aten.cos.default"
    assert found.first.difference is not None
    assert (found.first.difference.elements, found.first.difference.of) == (1, 32)
    assert 0 < found.first.difference.largest < 1e-6
    assert "output" in {d.name for d in found.differences}


def test_an_operator_that_was_captured_wrongly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    off_by_a_bit("aten.mul.Tensor", monkeypatch)  # in the backward alone
    found = lowtide.verify(Sine(), (torch.randn(4, 8),), budget="100% of plain", work=100, without=["in-place"])
    assert found.first is not None
    assert found.first.operator == "aten.mul.Tensor"
    assert found.first.segment == "backward"
    assert found.first.origin.source == line_of("return torch.cos(x)")
    assert "whatever the plan" in found.first.cause
    assert {d.name for d in found.differences} == {"gradient of inner.weight", "gradient of inner.bias"}


def test_a_value_that_is_overwritten_before_it_is_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is right, and spoils what it was given."""
    operator = writer.Writer.operator

    def spoiling(self: writer.Writer, op: str) -> str:
        name = operator(self, op)
        if op == "aten.cos.default" and self.marked:
            right = self.scope[name]
            self.scope[name] = lambda x: (right(x), x.detach().view(-1)[:1].fill_(7.0))[0]
        return name

    monkeypatch.setattr(writer.Writer, "operator", spoiling)
    found = lowtide.verify(Sine(), (torch.randn(4, 8),), budget="100% of plain", work=100, without=["in-place"])
    assert found.first is not None
    assert found.first.operator == "aten.sin.default"  # the backward of cos reads what sin made
    assert found.first.segment == "backward"
    assert "has been overwritten since" in found.first.cause


def test_plain_pytorch_that_does_not_agree_with_itself_is_said() -> None:
    found = lowtide.verify(Counted(), (torch.randn(4, 4),), budget="100% of plain", work=100)
    assert not found.equal
    assert not found.plain_agrees
    assert not found.kept
    assert found.first is not None
    assert found.first.operator == "aten.mul.Tensor"
    assert found.first.origin.source == line_of("return x * Counted.calls")
    assert "nothing can be verified" in found.note
    assert found.differences[0].name == "output"


def test_several_graphs() -> None:
    found = lowtide.verify(Broken(), (torch.randn(32, 8),), budget="100% of plain", work=100)
    assert found.equal, found.explain()
    assert found.plan is not None
    assert found.plan.graphs == 2


def test_a_loss_of_ones_own_and_an_evaluation() -> None:
    model, x = Sine(), torch.randn(4, 8)
    found = lowtide.verify(model, (x,), budget="100% of plain", work=100, loss_fn=lambda y: y.square().mean())
    assert found.equal, found.explain()
    assert found.compared["gradient"] == 2
    with torch.no_grad():
        found = lowtide.verify(model.eval(), (x,), budget="100% of plain", work=100, steps=1)
    assert found.equal, found.explain()
    assert "gradient" not in found.compared


def test_below_exact_it_is_said_how_far_results_are(monkeypatch: pytest.MonkeyPatch) -> None:
    off_by_a_bit("aten.cos.default", monkeypatch, planned=True, bit=0)
    options: dict[str, Any] = {"budget": "100% of plain", "work": 100, "without": ["in-place"]}
    found = lowtide.verify(Sine(), (torch.randn(4, 8),), numerics="reassociated", steps=1, **options)
    assert not found.equal
    assert found.within_level is True, found.explain()
    assert found.kept
    monkeypatch.setitem(globals(), "_flipped", lambda result, _: result.mul_(1.01))
    found = lowtide.verify(Sine(), (torch.randn(4, 8),), numerics="reassociated", steps=1, **options)
    assert found.within_level is False
    assert found.kept  # no bits are promised at this level: it is said, and is no error
    assert "further from plain PyTorch" in found.note


def test_what_cannot_be_copied_is_refused_with_the_command_that_can() -> None:
    model = Sine()
    model.lock = threading.Lock()
    with pytest.raises(VerificationError, match=r"lowtide verify FILE\.py:FUNCTION"):
        lowtide.verify(model, (torch.randn(4, 8),), budget="100% of plain")


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(LowtideError, match=r"torch\.nn\.Module"):
        lowtide.verify(torch.sin, (torch.randn(4),), budget="100% of plain")  # type: ignore[arg-type]


def test_fit_verifies_the_first_step_of_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lowtide.fit(Sine(), "100% of plain", verify=True, work=100, without=["in-place"])
    model(torch.randn(4, 8)).sum().backward()
    off_by_a_bit("aten.sin.default", monkeypatch, planned=True)
    model(torch.randn(4, 8)).sum().backward()  # a shape that was verified; its code is kept
    model.zero_grad()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    x, calls = torch.randn(6, 8), model.lowtide.calls
    generator = torch.get_rng_state()
    with pytest.raises(
        VerificationError, match=r"refused; nothing has been changed(.|\n)*aten\.sin\.default"
    ) as caught:
        model(x)
    assert isinstance(caught.value.verification, lowtide.Verification)
    assert model.lowtide.calls == calls
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())


def counted_plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every plan that is made."""
    from lowtide.ir.plan import PlanRecord
    from lowtide.plan_cache import lookup
    from lowtide.record import PlanRequest

    made: list[object] = []
    plan = lookup.make_record

    def counted(request: PlanRequest, **kwargs: Any) -> PlanRecord:
        made.append(request)
        return plan(request, **kwargs)

    monkeypatch.setattr(lookup, "make_record", counted)
    return made


def test_the_plan_that_runs_is_the_one_that_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted_plans(monkeypatch)
    model = lowtide.fit(Sine(), "100% of plain", verify=True, work=100)
    model(torch.randn(4, 8)).square().mean().backward()
    assert len(made) == 1
    assert model.lowtide.plan is not None


class Two(nn.Module):
    """Two outputs, and state that a forward changes."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.inner, self.norm, self.breaks = nn.Linear(8, 8), nn.BatchNorm1d(8), breaks

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.inner(nn.functional.dropout(x, 0.1)))
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.sin(x), torch.sinh(x)


@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "two graphs"])
def test_what_is_planned_in_a_backward_is_verified_at_its_end(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    made = counted_verifications(monkeypatch)
    model = lowtide.fit(Two(breaks=breaks), "1MiB", verify=True, work=100, without=["in-place"])
    model(torch.randn(4, 8))[0].square().sum().backward()
    assert made == [False, True], "before the step for both outputs, behind it for the one that the loss uses"
    assert model.inner.weight.grad is not None
    state = {name: t.clone() for name, t in model.named_parameters()}
    monkeypatch.setitem(globals(), "_flipped", lambda result, _: result.mul_(1.01))
    off_by_a_bit("aten.cosh.default", monkeypatch, planned=True)  # in backwards in which the other output counts
    model(torch.randn(4, 8))[0].square().sum().backward()  # as before: that code is kept
    with pytest.raises(VerificationError, match=r"of output\[1\](.|\n)*zero_grad(.|\n)*") as caught:
        model(torch.randn(4, 8))[1].t().contiguous().square().sum().backward()
    assert isinstance(caught.value.verification, lowtide.Verification)
    assert caught.value.verification.plan is not None
    assert all(torch.equal(t, state[name]) for name, t in model.named_parameters())


def counted_verifications(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every verification by `fit`, whether it is for gradients that came as before."""
    made: list[bool] = []
    verified = verified_steps.verified

    def noted(subject: Any, *args: Any) -> Any:
        made.append(subject.gradient_layouts is not None)
        return verified(subject, *args)

    monkeypatch.setattr(verified_steps, "verified", noted)
    return made


@pytest.mark.breadth
def test_gradients_that_were_verified_are_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted_verifications(monkeypatch)
    model = lowtide.fit(Two(), "1MiB", verify=True, work=100)
    losses = [lambda y: y[0].sum(), lambda y: y[1].square().mean()] * 3
    for loss in losses:
        loss(model(torch.randn(4, 8))).backward()
    assert made == [False, True, True]
    loss(model(torch.randn(6, 8))).backward()
    assert made == [False, True, True, True, True], "a new shape begins with the gradients that are expected"
    with torch.no_grad():
        model(torch.randn(6, 8))
    assert len(made) == 6
    with torch.autocast("cpu"):
        loss(model(torch.randn(6, 8))).backward()
    assert len(made) == 7, "what autocast does to a step makes it another"


def test_models_that_share_a_budget_are_not_verified_by_fit() -> None:
    first = lowtide.fit(Sine(), "100% of plain")
    with pytest.raises(VerificationError, match="share="):
        lowtide.fit(Sine(), share=first, verify=True)
