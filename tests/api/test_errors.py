"""What a user can get wrong, and what lowtide says: clear errors that name the remedy and change nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import lowtide
from lowtide.ir.plan import Status
from tests.networks import NETWORKS, gpt2, twin

MIXED = NETWORKS["mixed"]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def snapshot(module: nn.Module) -> list[torch.Tensor]:
    return [*(t.clone() for t in module.state_dict().values()), torch.get_rng_state()]


def unchanged(module: nn.Module, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(snapshot(module), before, strict=True))


def test_too_small_a_budget_is_refused_before_anything_changes() -> None:
    fitted = lowtide.fit(MIXED.build(), budget="20KiB")
    before = snapshot(fitted)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        MIXED.loss(fitted, MIXED.batches(1)[0])
    assert unchanged(fitted, before)
    error = caught.value
    assert error.budget_B == 20 * 1024
    assert error.budget_B < error.floor_B <= error.smallest_B
    assert error.operators
    assert "networks.py" in str(error)
    assert f"budget={error.smallest_B}" in str(error)
    fitted.lowtide.set_budget(error.smallest_B)  # and what it names works
    MIXED.loss(fitted, MIXED.batches(1)[0]).backward()


def test_too_small_a_budget_reaches_the_user_through_torch_compile() -> None:
    module = MIXED.build()
    compiled = torch.compile(module, backend="lowtide", options={"budget": "20KiB"})
    before = snapshot(module)
    with pytest.raises(lowtide.InfeasibleBudget, match="Proved floor"):
        MIXED.loss(compiled, MIXED.batches(1)[0])
    assert unchanged(module, before)


@pytest.mark.parametrize("budget", ["", "6 giraffes", "-1GiB", 0, "0%", "120%", None, 1.5, True, "nan"])
def test_malformed_budgets(budget: object) -> None:
    with pytest.raises(lowtide.BudgetError, match="write bytes"):
        lowtide.fit(MIXED.build(), budget=budget)  # type: ignore[arg-type]


def test_backend_options() -> None:
    for options, text in (({}, "needs options"), ({"budget": "1GiB", "bugdet": 1}, "unknown options")):
        compiled = torch.compile(MIXED.build(), backend="lowtide", options=options)
        with pytest.raises(lowtide.BudgetError, match=text):
            MIXED.loss(compiled, MIXED.batches(1)[0])


class Disabled(nn.Linear):
    """Runs in plain Python, outside any graph."""

    @torch._dynamo.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_nothing_captured_is_an_error() -> None:
    fitted = lowtide.fit(Disabled(3, 3), budget="1GiB")
    with pytest.raises(lowtide.CaptureError, match="no graph of this model was captured"):
        fitted(torch.ones(2, 3))
    with pytest.raises(lowtide.CaptureError, match="no graph of this model was captured"):
        lowtide.plan(Disabled(3, 3), (torch.ones(2, 3),), budget="1GiB")


def test_a_recompile_limit_is_an_error() -> None:
    fitted = lowtide.fit(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), budget="1GiB", dynamic=False)

    def many_shapes() -> None:
        for rows in range(1, 12):
            fitted(torch.ones(rows, 3))

    with (
        torch._dynamo.config.patch(recompile_limit=4),
        pytest.raises(lowtide.RecompileLimit, match="outside the budget"),
    ):
        many_shapes()


def test_double_backward_and_a_second_backward_raise() -> None:
    fitted = lowtide.fit(MIXED.build(), budget="200% of plain")
    loss = MIXED.loss(fitted, MIXED.batches(1)[0])
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss = MIXED.loss(fitted, MIXED.batches(1)[0])
    (gradient,) = torch.autograd.grad(loss, [fitted.last.bias], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_plan_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = MIXED.build(), MIXED.batches(1)[0]
    plan = lowtide.plan(module, batch, budget="95% of plain")
    path = tmp_path / "plan.json"
    plan.save(path)
    assert lowtide.Plan.load(path).record == plan.record
    fitted = lowtide.fit(twin(module), plan=path)
    MIXED.loss(fitted, batch).backward()
    assert fitted.lowtide.plan.record == plan.record
    assert fitted.lowtide.plan.budget_B == plan.budget_B

    wrong_shape = lowtide.fit(twin(module), plan=path)
    with pytest.raises(lowtide.PlanMismatch, match="other shapes"):
        MIXED.loss(wrong_shape, (batch[0][:7], batch[1][:7]))
    torch.set_num_threads(1 + torch.get_num_threads())
    try:
        with pytest.raises(lowtide.PlanMismatch, match="threads"):
            MIXED.loss(lowtide.fit(twin(module), plan=path), batch)
    finally:
        torch.set_num_threads(torch.get_num_threads() - 1)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MKL_CBWR", "SSE4_2" if os.environ.get("MKL_CBWR") == "COMPATIBLE" else "COMPATIBLE")
        with pytest.raises(lowtide.PlanMismatch, match="rounded otherwise"):
            MIXED.loss(lowtide.fit(twin(module), plan=path), batch)

    text = path.read_text()
    other_version = re.sub(r'"version": ?\d+', '"version": 99', text, count=1)
    assert other_version != text
    for damaged in ("", "{}", text[: len(text) // 2], json.dumps({"hello": 1}), other_version):
        (tmp_path / "bad.json").write_text(damaged)
        with pytest.raises(lowtide.PlanFileError, match=r"bad\.json"):
            lowtide.fit(twin(module), plan=tmp_path / "bad.json")
    with pytest.raises(lowtide.PlanFileError, match="nowhere"):
        lowtide.fit(twin(module), plan=tmp_path / "nowhere.json")


def test_interrupting_the_plan_returns_what_was_found() -> None:
    module = gpt2()
    tokens = torch.zeros(2, 32, dtype=torch.long)
    asked = threading.Event()

    def interrupt(progress: object) -> None:
        if getattr(progress, "time_s", None) is not None and not asked.is_set():
            asked.set()
            signal.raise_signal(signal.SIGINT)

    whole = lowtide.plan(module, kwargs={"input_ids": tokens, "labels": tokens}, budget="100% of plain")
    budget_B = int(0.8 * whole.peak_B)
    plan = lowtide.plan(
        module, kwargs={"input_ids": tokens, "labels": tokens}, budget=budget_B, watch=interrupt, work=50_000_000
    )
    assert asked.is_set()
    assert plan.status in (Status.INTERRUPTED, Status.OPTIMAL)
    assert plan.peak_B <= budget_B


def under_forward_mode(model: nn.Module, x: torch.Tensor) -> object:
    with torch.autograd.forward_ad.dual_level():
        return model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


def under_another_stance(model: nn.Module, x: torch.Tensor) -> object:
    with torch.compiler.set_stance("force_eager"):
        return model(x)


SURROUNDINGS = {
    "grad": (lambda model, x: torch.func.grad(lambda y: model(y).sum())(x), "a transform of torch.func"),
    "vmap": (lambda model, x: torch.func.vmap(model)(x.unsqueeze(0)), "a transform of torch.func"),
    "forward mode": (under_forward_mode, "forward-mode automatic differentiation"),
    "stance": (under_another_stance, r'set_stance\("force_eager"\) is in force'),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_surrounds_a_call_is_named_and_leaves_no_trace(name: str) -> None:
    torch.manual_seed(0)
    model, x = lowtide.fit(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "64MiB", work=20), torch.randn(3, 4)
    call, text = SURROUNDINGS[name]
    for _ in range(2):
        with pytest.raises(lowtide.CaptureError, match=text):
            call(model, x)
        model(x).sum().backward()  # as if nothing had been


@torch.library.custom_op("lowtide_test_errors::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(1, 2)


doubled.register_fake(torch.empty_like)  # wrong: it is twice as wide
doubled.register_autograd(lambda _, g: g[:, :8].clone())


class WithWrongFake(nn.Module):
    """Draws and counts before an operator whose fake kernel is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(nn.functional.dropout(self.norm(self.first(x)), 0.1)).sin().square().mean()


@pytest.mark.parametrize("whole", [False, True])
def test_an_operator_that_returns_other_shapes_than_its_fake_kernel_is_named(whole: bool) -> None:
    model = WithWrongFake()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if whole:
        call = lowtide.TrainStep(model, None, optimizer, "64MiB", work=20)
    else:
        call = lowtide.fit(model, "64MiB", work=20)
    before = snapshot(model)
    text = r"doubled\S* returned a tensor of shape \[4, 16\].* said of shape \[4, 8\].* its register_fake"
    with pytest.raises(lowtide.UnsupportedOperator, match=text):
        call(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    assert unchanged(model, before)
