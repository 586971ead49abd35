"""What stands round whole steps: schedulers, checkpoints, mixed precision, other batches, errors, leaving."""

from __future__ import annotations

import copy
import functools
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import lowtide
from lowtide.runtime.updater import Updater
from tests.stepping import batches, perceptron, plainly, same, wholly


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def adamw(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), 1e-3)


def stepped(model: nn.Module, optimizer: optim.Optimizer, **options: Any) -> lowtide.TrainStep:
    loss = options.pop("loss_fn", F.cross_entropy)
    return lowtide.TrainStep(model, loss, optimizer, options.pop("budget", "100% of plain"), work=1_000, **options)


def grouped(model: nn.Module) -> optim.Optimizer:
    """Two groups with options of their own; the first parameter is frozen."""
    first, *others = model.parameters()
    first.requires_grad_(False)
    return optim.AdamW(
        [{"params": [first, *others[:3]], "lr": 1e-2}, {"params": others[3:], "weight_decay": 0.5}], lr=1e-3
    )


def test_schedulers_groups_other_batches_and_evaluation_between() -> None:
    plain, model = perceptron(), perceptron()
    one, other = grouped(plain), grouped(model)
    schedules = [optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (one, other)]
    data = [*batches(2), *batches(1, 7), *batches(2)]
    expected = plainly(plain, one, data, after=schedules[0].step)
    step = stepped(model, other)

    def between() -> None:
        schedules[1].step()
        model.eval()
        model(data[0][0])
        model.train()
        other.zero_grad()

    assert wholly(step, model, other, data, after=between).apart(expected) == []
    assert other.param_groups[0]["lr"] == one.param_groups[0]["lr"] < 1e-2
    assert len(step.plans) >= 2


def test_parameters_may_change_their_groups() -> None:
    plain, model = perceptron(), perceptron()
    one, other = grouped(plain), grouped(model)

    def swap(optimizer: optim.Optimizer) -> None:
        first, second = (group["params"] for group in optimizer.param_groups)
        first[1], second[0] = second[0], first[1]

    step = stepped(model, other)
    for optimizer in (one, other):
        optimizer.param_groups[0]["weight_decay"] = 0.0  # for which the step runs other operators
    expected = plainly(plain, one, batches(4), after=lambda: swap(one))
    assert wholly(step, model, other, batches(4), after=lambda: swap(other)).apart(expected) == []


def test_a_plan_can_be_looked_at_before_any_step() -> None:
    plain, model = perceptron(), perceptron()
    optimizer = adamw(model)
    step = stepped(model, optimizer)
    before = copy.deepcopy((model.state_dict(), torch.get_rng_state()))
    looked = step.look(*batches(1)[0])
    assert step.plan is None
    assert not optimizer.state
    assert all(same(v, before[0][k]) for k, v in model.state_dict().items())
    assert same(torch.get_rng_state(), before[1])
    assert wholly(step, model, optimizer, batches(3)).apart(plainly(plain, adamw(plain), batches(3))) == []
    assert step.plan is not None
    assert step.plan.peak_B == looked.peak_B
    assert "update" in looked.explain(verbose=True)
    step.set_budget(1)
    with pytest.raises(lowtide.InfeasibleBudget):
        step.look(*batches(1)[0])


def test_a_message_that_is_logged_once_breaks_no_step(caplog: pytest.LogCaptureFixture) -> None:
    remembering = functools.lru_cache(logging.Logger.warning)

    class Chatty(logging.Logger):
        warning_once = remembering

    logger = Chatty("chatty")
    logger.addHandler(caplog.handler)

    class Talking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logger.warning_once(f"{type(self).__name__} speaks once")  # type: ignore[operator]
            return self.body(x)

    model = Talking()
    optimizer = adamw(model)
    step = stepped(model, optimizer)
    for batch in batches(2):
        step(*batch)
    assert [r.getMessage() for r in caplog.records if "speaks" in r.getMessage()] == ["Talking speaks once"]


def test_checkpoints_pass_between_plain_and_whole_steps() -> None:
    plain, model = perceptron(), perceptron()
    one, other = adamw(plain), adamw(model)
    step = stepped(model, other)
    wholly(step, model, other, batches(3))
    checkpoint = copy.deepcopy((model.state_dict(), other.state_dict()))
    plain.load_state_dict(checkpoint[0])
    one.load_state_dict(copy.deepcopy(checkpoint[1]))
    expected = plainly(plain, one, batches(3))
    assert wholly(step, model, other, batches(3)).apart(expected) == []
    back = copy.deepcopy((plain.state_dict(), one.state_dict()))
    step(*batches(1)[0])
    model.load_state_dict(back[0])
    other.load_state_dict(copy.deepcopy(back[1]))
    expected = plainly(plain, one, batches(3))
    assert wholly(step, model, other, batches(3)).apart(expected) == []
    assert step.memory_stats().misplaced_allocations == 0


def test_closing_and_a_second_step() -> None:
    plain, model = perceptron(), perceptron()
    one, other = adamw(plain), adamw(model)
    step = stepped(model, other)
    with pytest.raises(lowtide.OptimizerError, match="another step already"):
        stepped(model, other)
    expected = plainly(plain, one, batches(2))
    assert wholly(step, model, other, batches(2)).apart(expected) == []
    step.close()
    with pytest.raises(lowtide.LowtideError, match="closed"):
        step(*batches(1)[0])
    expected = plainly(plain, one, batches(2))
    assert plainly(model, other, batches(2)).apart(expected) == []
    again = stepped(model, other)
    expected = plainly(plain, one, batches(2))
    assert wholly(again, model, other, batches(2)).apart(expected) == []


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    plain, model = perceptron(), perceptron()
    optimizer = adamw(model)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs.float(), targets)

    class Cast(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.body(x)

    expected = plainly(Cast(plain), adamw(plain), batches(3), loss_fn=loss)
    if inside:
        step = stepped(Cast(model), optimizer, loss_fn=loss)
    else:
        step = stepped(model, optimizer, loss_fn=loss, autocast=torch.bfloat16)
    found = wholly(step, Cast(model), optimizer, batches(3))
    assert found.apart(expected) == []


def test_master_weights_are_stepped_and_saved() -> None:
    plain = perceptron().bfloat16()
    model = copy.deepcopy(plain)
    data = [(x.bfloat16(), y) for x, y in batches(4)]
    masters = [p.detach().float() for p in plain.parameters()]
    one, other = optim.AdamW(masters, 1e-3), adamw(model)
    torch.manual_seed(7)
    losses = []
    for x, y in data:
        loss = F.cross_entropy(plain(x), y)
        loss.backward()
        for p, master in zip(plain.parameters(), masters, strict=True):
            master.grad = p.grad.float()
            p.grad = None
        one.step()
        with torch.no_grad():
            for p, master in zip(plain.parameters(), masters, strict=True):
                p.copy_(master)
        losses.append(loss.detach())
    step = stepped(model, other, master_weights=True)
    found = wholly(step, model, other, data)
    assert all(same(a, b) for a, b in zip(losses, found.losses, strict=True))
    saved = copy.deepcopy(step.state_dict())
    for (name, p), q, master in zip(model.named_parameters(), plain.parameters(), masters, strict=True):
        assert same(p.detach(), q.detach())
        assert same(saved["master"][name], master)
        assert same(other.state[p]["exp_avg_sq"], one.state[master]["exp_avg_sq"])
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    state = [{k: v.clone() for k, v in other.state[p].items()} for p in model.parameters()]
    expected = wholly(step, model, other, data)
    model.load_state_dict(weights)
    for p, kept in zip(model.parameters(), state, strict=True):
        other.state[p] = kept
    step.load_state_dict(saved)
    assert wholly(step, model, other, data).apart(expected) == []


@pytest.mark.parametrize("make", [adamw, lambda m: optim.SGD(m.parameters(), 0.1)])
def test_a_flush_steps_the_masters(make: Any) -> None:
    data = [(x.bfloat16(), y) for x, y in batches(3)]
    one, other = perceptron().bfloat16(), perceptron().bfloat16()
    first, second = make(one), make(other)
    expected = wholly(stepped(one, first, master_weights=True), one, first, data)
    step = stepped(other, second, master_weights=True, accumulate=2)
    assert wholly(step, other, second, data, after=step.flush).apart(expected) == []


class Heavy(nn.Module):
    """Parameters that are much larger than anything else; calls choose which of them get gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor, both: bool = True) -> torch.Tensor:
        x = torch.tanh(self.one(x))
        return (self.other(x) if both else x).square().mean()


def nesterov(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True)


@pytest.mark.parametrize(
    ("make", "dtype", "options"),
    [
        (adamw, torch.float32, {}),
        (adamw, torch.float32, {"clip_norm": 0.01}),
        (adamw, torch.bfloat16, {"master_weights": True}),
        (nesterov, torch.float32, {}),
        (lambda m: optim.Adafactor(m.parameters()), torch.float32, {}),
    ],
)
def test_a_flush_fits_in_the_plan(make: Any, dtype: torch.dtype, options: dict[str, Any]) -> None:
    x = torch.randn(2, 128, generator=torch.Generator().manual_seed(1), dtype=dtype)
    one, other = Heavy().to(dtype), Heavy().to(dtype)
    first, second = make(one), make(other)
    if dtype is torch.float32:
        clip_norm = options.get("clip_norm", float("inf"))
        expected = plainly(
            one, first, [(x,)] * 2, loss_fn=None, clip=lambda p: nn.utils.clip_grad_norm_(list(p), clip_norm)
        )
    else:
        expected = wholly(stepped(one, first, loss_fn=None, **options), one, first, [(x,)] * 2)
    step = stepped(other, second, loss_fn=None, accumulate=2, **options)
    assert wholly(step, other, second, [(x,)] * 2, after=step.flush).apart(expected) == []
    assert step.memory_stats().spills == 0


def test_what_only_earlier_calls_had_gradients_for_is_stepped_inside_the_plan() -> None:
    x = torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    data = [(x, True), (x, False)]
    plain, model = Heavy(), Heavy()
    expected = plainly(plain, adamw(plain), data, loss_fn=None, accumulate=2)
    optimizer = adamw(model)
    step = stepped(model, optimizer, loss_fn=None, accumulate=2)
    assert wholly(step, model, optimizer, data).apart(expected) == []
    assert step.memory_stats().spills == 0


class Shifted(nn.Module):
    """Two parameters and the layer below them get the same gradient, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.top = nn.Linear(12, 32), nn.Linear(32, 5)
        self.one, self.other = nn.Parameter(torch.ones(24, 32)), nn.Parameter(torch.ones(24, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(torch.tanh(self.low(x) + self.one + self.other))


def test_an_update_leaves_its_gradient_to_others() -> None:
    torch.manual_seed(0)
    plain = Shifted()
    model = copy.deepcopy(plain)

    def make(model: nn.Module) -> optim.Optimizer:  # whose step writes over the gradients it is given
        return optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True)

    optimizer = make(model)
    expected = plainly(plain, make(plain), batches(3))
    assert wholly(stepped(model, optimizer), model, optimizer, batches(3)).apart(expected) == []


def test_gathered_gradients_are_saved() -> None:
    plain, model = perceptron(), perceptron()
    expected = plainly(plain, adamw(plain), batches(2), accumulate=2)
    optimizer = adamw(model)
    step = stepped(model, optimizer, accumulate=2)
    torch.manual_seed(7)
    first = step(*batches(2)[0])
    saved, generator = copy.deepcopy((step.state_dict(), model.state_dict())), torch.get_rng_state()
    step.zero_grad()
    other = perceptron()
    second = adamw(other)
    again = stepped(other, second, accumulate=2)
    other.load_state_dict(saved[1])
    again.load_state_dict(saved[0])
    assert again.waiting == 1
    torch.set_rng_state(generator)
    last = again(*batches(2)[1])
    assert [same(a, b) for a, b in zip((first, last), expected.losses, strict=True)] == [True, True]
    assert [k for k, v in other.state_dict().items() if not same(v, expected.tensors[k])] == []


def test_hooks_make_the_optimizer_opaque_and_are_called() -> None:
    plain, model = perceptron(), perceptron()
    optimizer = adamw(model)
    seen: list[float] = []

    def note(stepping: optim.Optimizer, *_: Any) -> None:
        seen.append(float(stepping.param_groups[0]["params"][0].grad.sum()))

    optimizer.register_step_pre_hook(note)
    expected = plainly(plain, adamw(plain), batches(2))
    with pytest.warns(lowtide.BudgetWarning, match="hooks are registered"):
        step = stepped(model, optimizer)
    assert wholly(step, model, optimizer, batches(2)).apart(expected) == []
    assert len(seen) == 2
    assert "as a whole" in step.explain()


def test_an_exception_among_the_updates_leaves_a_step_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = perceptron(), perceptron()
    one, other = adamw(plain), adamw(model)
    step = stepped(model, other)
    wholly(step, model, other, batches(1))
    checkpoint = copy.deepcopy((model.state_dict(), other.state_dict()))
    before = Updater.step

    def fails(updater: Updater, *args: Any) -> None:
        if updater.parameter is model[0].bias:
            raise RuntimeError("no more")
        before(updater, *args)

    monkeypatch.setattr(Updater, "step", fails)
    with pytest.raises(RuntimeError, match="no more"):
        step(*batches(1)[0])
    monkeypatch.undo()
    for one_model, one_optimizer in ((plain, one), (model, other)):
        one_model.load_state_dict(checkpoint[0])
        one_optimizer.load_state_dict(copy.deepcopy(checkpoint[1]))
    expected = plainly(plain, one, batches(2))
    assert wholly(step, model, other, batches(2)).apart(expected) == []
    assert step.memory_stats().spills == 0


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_errors_name_the_remedy() -> None:
    x, y = batches(1)[0]
    model = perceptron()
    start = copy.deepcopy(model.state_dict())
    optimizer = adamw(model)
    step = stepped(model, optimizer, loss_fn=lambda out, y: F.cross_entropy(out, y, reduction="none"))
    with pytest.raises(lowtide.CaptureError, match="one number"):
        step(x, y)
    step.close()
    assert all(same(v, start[k]) for k, v in model.state_dict().items())
    assert optimizer.state_dict()["state"] == {}
    with pytest.raises(lowtide.OptimizerError, match="belong neither"):
        stepped(model, optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], 0.1))
    with pytest.raises(lowtide.OptimizerError, match="LBFGS"):
        stepped(model, optim.LBFGS(model.parameters()))
    with pytest.raises(lowtide.OptimizerError, match="is no torch"):
        stepped(model, "adam")  # type: ignore[arg-type]
    frozen = perceptron().requires_grad_(False)
    with pytest.raises(lowtide.CaptureError, match="nothing is trained"):
        stepped(frozen, optim.SGD(frozen.parameters(), 0.1))(x, y)
    broken = Breaks()
    with pytest.raises(lowtide.CaptureError, match=r"breaks into several.*lowtide\.fit"):
        stepped(broken, adamw(broken))(x, y)
    sparse = nn.Sequential(nn.Embedding(9, 12, sparse=True), nn.Flatten(), nn.Linear(24, 5))
    with pytest.raises(lowtide.CaptureError, match="sparse"):
        stepped(sparse, optim.SGD(sparse.parameters(), 0.1))(torch.zeros(24, 2, dtype=torch.int64), y)
    fitted = lowtide.fit(perceptron(), budget="100% of plain")
    with pytest.raises(lowtide.LowtideError, match="unfit"):
        stepped(fitted, adamw(fitted))
    with pytest.raises(lowtide.LowtideError, match="no plan before"):
        stepped(model, optimizer).explain()


class Fork(nn.Module):
    """Its second layer takes part only where it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor, far: bool) -> torch.Tensor:
        return (self.second(self.first(x)) if far else self.first(x))[:, :5]


def test_one_norm_for_gradients_of_different_graphs_is_refused_before_anything_runs() -> None:
    torch.manual_seed(0)
    model = Fork()
    optimizer = optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    step = lowtide.TrainStep(model, F.cross_entropy, optimizer, "64MiB", accumulate=2, clip_norm=0.01, work=500)
    (x, y), before = batches(1)[0], {k: v.clone() for k, v in model.state_dict().items()}
    step(x, True, y)
    with pytest.raises(lowtide.OptimizerError, match=r"2 parameters have gradients .* Call step.flush\(\)"):
        step(x, False, y)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert step.flush()
