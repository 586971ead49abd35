"""What an optimizer will need is what the allocator then sees, and finding it out changes nothing."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer, RAdam, RMSprop
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lowtide.device.fake_tensors import fake_mode, optimizers_take_fakes_for_real
from lowtide.device.observer import observe
from lowtide.errors import LowtideError
from lowtide.profile.optimizer import OptimizerNeeds, optimizer_needs
from tests import torchvision_shim

torchvision_shim.install()
from transformers.optimization import Adafactor  # noqa: E402

Parameters = list[torch.nn.Parameter]
Maker = Callable[[Parameters], Optimizer]

LARGEST = (500, 100)
SHAPES = (LARGEST, (25, 40, 3, 3), (1000,), (64,), (1,), ())
OPTIMIZERS: dict[str, Maker] = {
    "sgd": lambda p: SGD(p, 0.1, weight_decay=0.1),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True),
    "nesterov-foreach": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd-fused": lambda p: SGD(p, 0.1, momentum=0.9, fused=True),
    "adam-amsgrad": lambda p: Adam(p, amsgrad=True),
    "adam-foreach-maximize": lambda p: Adam(p, foreach=True, amsgrad=True, maximize=True, weight_decay=0.1),
    "adamw": lambda p: AdamW(p),
    "adamw-tensor-lr": lambda p: AdamW(p, lr=torch.tensor(0.1)),
    "adamw-foreach": lambda p: AdamW(p, foreach=True),
    "adamw-fused": lambda p: AdamW(p, fused=True),
    "rmsprop": lambda p: RMSprop(p, centered=True, momentum=0.9),
    "adagrad": lambda p: Adagrad(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "adafactor-foreach": lambda p: torch.optim.Adafactor(p, foreach=True),
    "adafactor-transformers": lambda p: Adafactor(p),
    "radam": lambda p: RAdam(p),
    "muon": lambda p: Muon([q for q in p if q.dim() == 2]),
}


def made(shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32) -> Parameters:
    return [torch.nn.Parameter(torch.rand(shape, dtype=torch.float32).to(dtype)) for shape in shapes]


def gradients(parameters: Parameters) -> None:
    for p in parameters:
        if p.requires_grad:
            p.grad = torch.rand_like(p)


def seen(make: Maker, parameters: Callable[[], Parameters], steps: int = 4) -> tuple[int, int]:
    """Bytes of state, and the most beyond parameters, gradients and state, of real steps; the last one is late."""
    gc.disable()
    with observe() as log:
        own = parameters()
        gradients(own)
        optimizer = make(own)
        for _ in range(steps):
            optimizer.step()
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"].fill_(9999)
        optimizer.step()
        given_B = sum(t.nbytes for t in own) + sum(p.grad.nbytes for p in own if p.grad is not None)
        lr = optimizer.param_groups[0]["lr"]
        given_B += lr.nbytes if isinstance(lr, torch.Tensor) else 0
    gc.enable()
    return log.end_B - given_B, log.peak_B - log.end_B


def of_fresh(make: Maker, parameters: Callable[[], Parameters]) -> OptimizerNeeds:
    needs = optimizer_needs(make(parameters()))
    assert needs.state_B == sum(needs.state_sizes_B)
    return needs


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in OPTIMIZERS),
        *((name, torch.bfloat16) for name in ("nesterov", "adamw", "adamw-foreach", "adafactor", "muon")),
        *((name, torch.bfloat16) for name in ("adafactor-foreach", "adafactor-transformers")),
    ],
)
def test_needs_are_what_the_allocator_sees(name: str, dtype: torch.dtype) -> None:
    make = OPTIMIZERS[name]
    needs = of_fresh(make, lambda: made(dtype=dtype))
    state_B, temporaries_B = seen(make, lambda: made(dtype=dtype))
    assert needs.method == "fake"
    assert needs.state_B == state_B
    assert temporaries_B <= needs.temporaries_B <= 1.01 * temporaries_B + 64


def two_groups(p: Parameters) -> Optimizer:
    adamw = {"params": p[:2], "lr": 0.1, "amsgrad": True}
    return AdamW([adamw, {"params": p[2:], "foreach": True, "weight_decay": 0.0}])


def partly_frozen() -> Parameters:
    parameters = made()
    parameters[0].requires_grad_(False)
    return parameters


def channels_last() -> Parameters:
    return [torch.nn.Parameter(p.to(memory_format=torch.channels_last)) if p.dim() == 4 else p for p in made()]


def tied() -> Parameters:
    first, *others = made()
    return list({id(p): p for p in (first, *others, first)}.values())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [(two_groups, made), (AdamW, partly_frozen), (lambda p: AdamW(p, fused=True), channels_last), (AdamW, tied)],
    ids=["groups", "frozen", "channels-last-fused", "tied"],
)
def test_kinds_of_parameters(make: Maker, parameters: Callable[[], Parameters]) -> None:
    needs = of_fresh(make, parameters)
    state_B, temporaries_B = seen(make, parameters)
    assert needs.state_B == state_B
    assert temporaries_B <= needs.temporaries_B <= 1.01 * temporaries_B + 64


def test_gradients_in_another_order_than_their_parameters_are_copied_by_fused_steps() -> None:
    (p,) = made([(8, 8, 4, 4)])
    p.grad = torch.rand(8, 8, 4, 4).to(memory_format=torch.channels_last)
    optimizer = AdamW([p], fused=True)
    predicted_B = optimizer_needs(optimizer).temporaries_B
    optimizer.step()
    with observe() as log:
        optimizer.step()
    assert 0 < log.peak_B <= predicted_B <= log.peak_B + 64


def test_only_parameters_that_get_gradients_have_state() -> None:
    used, unused = made([(30,), (20,)])
    optimizer = SGD([used, unused], 0.1, momentum=0.9)
    assert optimizer_needs(optimizer).state_sizes_B == (120, 80)
    assert optimizer_needs(optimizer, with_grad=[used]).state_sizes_B == (120,)
    unused.grad = torch.ones_like(unused)
    assert optimizer_needs(optimizer, with_grad=[used]).state_sizes_B == (120, 80)


def test_state_that_exists_counts_as_it_is() -> None:
    a, b = made([(30,), (20,)])
    optimizer = AdamW([a, b])
    a.grad = torch.ones_like(a)
    optimizer.step()
    assert sorted(optimizer_needs(optimizer).state_sizes_B) == [4, 4, 80, 80, 120, 120]
    optimizer.state[a]["exp_avg"] = torch.zeros(100)[:30]  # a part of a larger storage
    assert optimizer_needs(optimizer).state_B == 4 + 4 + 80 + 80 + 120 + 400
    loaded = AdamW(made([(30,), (20,)]))
    loaded.load_state_dict(optimizer.state_dict())
    assert optimizer_needs(loaded).state_B == optimizer_needs(optimizer).state_B - 400 + loaded_B(loaded)


def loaded_B(optimizer: Optimizer) -> int:
    return next(iter(optimizer.state.values()))["exp_avg"].untyped_storage().nbytes()


class Anchored(SGD):
    """Keeps a tensor for all parameters as an attribute, and steps with helpers that make garbage in cycles."""

    anchor: torch.Tensor | None = None

    def step(self, closure: Any = None) -> Any:
        parameters = self.param_groups[0]["params"]
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        cycle: list[Any] = [flat]
        cycle.append(cycle)
        self.anchor = flat.clone()
        return super().step(closure)


def test_state_outside_of_state_counts() -> None:
    needs = optimizer_needs(Anchored(made([(30,), (20,)]), 0.1))
    assert needs.state_sizes_B == (200,)
    assert needs.method == "fake"


class Watched(AdamW):
    """Needs real contents, as code in other languages does."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.numpy()
        return super().step(closure)


@pytest.mark.parametrize("foreach", [False, True])
def test_code_that_needs_contents_is_measured_on_samples(foreach: bool) -> None:
    def make(p: Parameters) -> Optimizer:
        return Watched(p, foreach=foreach)

    needs = of_fresh(make, lambda: made([*SHAPES, LARGEST]))
    state_B, temporaries_B = seen(make, lambda: made([*SHAPES, LARGEST]))
    assert needs.method == "sampled"
    assert "numpy" in needs.note
    assert needs.state_B == state_B
    assert temporaries_B <= needs.temporaries_B <= 1.01 * temporaries_B + 64


def test_samples_count_state_that_exists() -> None:
    optimizer = Watched(made([(30,), (30,), (20,)]))
    gradients(optimizer.param_groups[0]["params"][:1])
    optimizer.step()
    before = contents(optimizer)
    assert sorted(optimizer_needs(optimizer).state_sizes_B) == [4, 4, 4, 80, 80, 120, 120, 120, 120]
    assert_equal(contents(optimizer), before)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_with_a_full_history(search: str | None) -> None:
    def make(parameters: Parameters) -> torch.optim.LBFGS:
        return torch.optim.LBFGS(
            parameters, history_size=5, line_search_fn=search, tolerance_grad=0, tolerance_change=0
        )

    needs = optimizer_needs(make(made([(900,), (100,)])))
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (900, 100)]
    gradients(parameters)

    def closure() -> float:
        for p in parameters:
            p.grad = torch.reciprocal(p.detach(), out=p.grad).neg_()
        return -1000 * float(parameters[0][0].detach().log())

    optimizer = make(parameters)
    gc.disable()
    with observe() as log:
        optimizer.step(closure)
        optimizer.step(closure)
    gc.enable()
    assert needs.state_B == log.end_B
    peak_B = log.peak_B - log.end_B
    assert peak_B <= needs.temporaries_B <= 1.01 * peak_B + 64
    assert "closure" in needs.note


def contents(optimizer: Optimizer) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "parameters": [p.detach().clone() for p in parameters],
        "identities": [id(p) for p in parameters],
        "versions": [p._version for p in parameters],
        "gradients": [None if p.grad is None else p.grad.clone() for p in parameters],
        "state": copy.deepcopy(optimizer.state_dict()),
        "attributes": set(vars(optimizer)),
        "generator": torch.get_rng_state(),
        "class": dict(vars(type(optimizer))),
    }


def assert_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    torch.testing.assert_close(a.pop("state"), b.pop("state"), rtol=0, atol=0)
    torch.testing.assert_close(a.pop("parameters"), b.pop("parameters"), rtol=0, atol=0)
    torch.testing.assert_close(a.pop("generator"), b.pop("generator"), rtol=0, atol=0)
    for x, y in zip(a.pop("gradients"), b.pop("gradients"), strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.equal(x, y)
    assert a == b


@pytest.fixture
def hooks() -> Iterator[list[str]]:
    called: list[str] = []
    before = register_optimizer_step_pre_hook(lambda *_: called.append("every optimizer, before"))
    after = register_optimizer_step_post_hook(lambda *_: called.append("every optimizer, after"))
    yield called
    before.remove()
    after.remove()


class Noisy(Watched):
    """Uses the generator, and numpy where it is told to."""

    contents = False

    def step(self, closure: Any = None) -> Any:
        torch.rand(3)
        return super().step(closure) if self.contents else AdamW.step(self, closure)


@pytest.mark.parametrize("sampled", [False, True], ids=["fake", "sampled"])
@pytest.mark.parametrize("steps", [0, 2])
def test_nothing_changes_and_no_hook_runs(hooks: list[str], sampled: bool, steps: int) -> None:
    parameters = made([(30,), (20,)])
    gradients(parameters[:1])
    optimizer = Noisy(parameters, lr=0.1)
    optimizer.contents = sampled
    for _ in range(steps):
        optimizer.step()
    hooks.clear()
    optimizer.register_step_pre_hook(lambda *_: hooks.append("before"))
    optimizer.register_step_post_hook(lambda *_: hooks.append("after"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.zero_grad = lambda *_: hooks.append("zero_grad")  # type: ignore[method-assign]
    before = contents(optimizer)
    assert optimizer_needs(optimizer).method == ("sampled" if sampled else "fake")
    assert hooks == []
    assert_equal(contents(optimizer), before)
    optimizer.step()
    assert {"every optimizer, before", "before", "after", "every optimizer, after"} == set(hooks)
    scheduler.step()


def test_trials_on_fakes_have_no_bytes() -> None:
    optimizer = AdamW(made([(1000, 1000)]))
    with observe() as log:
        optimizer_needs(optimizer)
    assert log.peak_B < 10_000


def test_temporaries_count_as_aligned() -> None:
    optimizer = AdamW(made([(1,)] * 10), foreach=True)
    assert optimizer_needs(optimizer).temporaries_B < 100
    needs = optimizer_needs(optimizer, alignment_B=512)
    assert needs.temporaries_B >= 10 * 512
    assert needs.state_B == 10 * 3 * 4


def test_bytes_of_another_device_do_not_count() -> None:
    assert optimizer_needs(AdamW(made()), device="cuda") == OptimizerNeeds(0, (), 0, "fake")


def test_fake_parameters_are_stepped_together_where_real_ones_are() -> None:
    from torch.optim.optimizer import _default_to_fused_or_foreach as choice

    with fake_mode():
        p = torch.nn.Parameter(torch.empty(2, device="cuda"))
        with optimizers_take_fakes_for_real():
            assert choice([p], differentiable=False) == (False, True)
        assert choice([p], differentiable=False) == (False, False)


class Wrapper(Optimizer):
    """Delegates, as wrappers of training libraries do."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state


class Sharpness(SGD):
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


class Broken(SGD):
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        raise ValueError("no step today")


class Holding(SGD):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.writer = (line for line in ())


def sparse(p: Parameters) -> Optimizer:
    p[0].grad = torch.ones(*p[0].shape).to_sparse()
    return SGD(p, 0.1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: Wrapper(AdamW(p)), "name the optimizer that it wraps"),
        (lambda p: Sharpness(p, 0.1), "wants a closure"),
        (lambda p: Broken(p, 0.1), "failed: ValueError: no step today"),
        (lambda p: Holding(p, 0.1), "cannot pickle"),
        (lambda p: AdamW(p, differentiable=True), "differentiable"),
        (lambda p: AdamW(p, capturable=True), "capturable"),
        (sparse, "sparse"),
        (torch.optim.SparseAdam, "sparse"),
    ],
)
def test_what_cannot_be_known_is_said(make: Maker, reason: str) -> None:
    needs = optimizer_needs(make(made()))
    assert (needs.state_B, needs.state_sizes_B, needs.temporaries_B, needs.method) == (0, (), 0, "unknown")
    assert reason in needs.note


def test_state_that_exists_counts_where_the_rest_is_unknown() -> None:
    parameters = made([(30,)])
    gradients(parameters)
    inner = SGD(parameters, 0.1, momentum=0.9)
    inner.step()
    needs = optimizer_needs(Wrapper(inner))
    assert (needs.state_sizes_B, needs.method) == ((120,), "unknown")


def test_a_running_profiler_prevents_measuring() -> None:
    with observe(), pytest.raises(LowtideError, match="profiler"):
        optimizer_needs(torch.optim.Adafactor(made(dtype=torch.bfloat16)))
    with observe(), pytest.raises(LowtideError, match="profiler"):
        optimizer_needs(Watched(made()))
