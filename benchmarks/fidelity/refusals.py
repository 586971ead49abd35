"""What lowtide refuses, tried: what was done, how it ended and the message."""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from tests.zoo.own_networks import Experts
from torch import nn

import lowtide
from benchmarks.fidelity.ecosystem_network import message_of
from benchmarks.results_file import fresh_profiles
from benchmarks.runner import HandOver

CAPACITY = "100% of plain"
CASES: dict[str, Callable[[], str | None]] = {}
"""By description; a case that is not refused returns what was seen instead."""


def _case(what: str) -> Callable[[Callable[[], str | None]], Callable[[], str | None]]:
    def add(attempt: Callable[[], str | None]) -> Callable[[], str | None]:
        CASES[what] = attempt
        return attempt

    return add


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def _step(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    loss = model(*inputs).square().mean()
    loss.backward()
    return loss.detach()


def _compared(make: Callable[[], nn.Module], *inputs: torch.Tensor) -> str:
    """Trains one step plainly and fitted; says whether the gradients are the same bits."""
    plain = make()
    fitted = lowtide.fit(copy.deepcopy(plain), budget=CAPACITY)
    losses = [_step(m, *inputs) for m in (plain, fitted)]
    pairs = zip(plain.parameters(), fitted.parameters(), strict=True)
    same = torch.equal(*losses) and all(
        torch.equal(p.grad.to_dense(), q.grad.to_dense()) for p, q in pairs if p.grad is not None
    )
    return "not refused: " + ("bits equal to plain" if same else "BITS DIFFER")


@_case("a budget below what any plan needs")
def _too_small() -> str | None:
    _step(lowtide.fit(_model(), budget="300 KB"), torch.ones(512, 64))
    return None


@_case('`budget="6 gigs"`')
def _unreadable() -> str | None:
    lowtide.fit(_model(), budget="6 gigs")
    return None


@_case("`optimizer=` something else")
def _no_optimizer() -> str | None:
    lowtide.fit(_model(), budget=CAPACITY, optimizer="adam")  # type: ignore[arg-type]
    return None


class _Disabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _model()

    @torch._dynamo.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)  # type: ignore[no-any-return]


@_case("a forward that is disabled for Dynamo")
def _disabled() -> str | None:
    return _compared(_Disabled, torch.ones(8, 64))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)[0]  # type: ignore[no-any-return]


@_case("a model of nothing but `nn.LSTM`")
def _recurrent() -> str | None:
    torch.manual_seed(0)
    return _compared(_Recurrent, torch.ones(5, 2, 16))


class _Selecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return h[h > 0] * 2  # type: ignore[no-any-return]


@_case("a size that depends on data, at a graph break")
def _selecting() -> str | None:
    return _compared(_Selecting, torch.ones(8, 64))


@_case("a size that depends on data, within a graph (`capture_dynamic_output_shape_ops`)")
def _selecting_within() -> str | None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return _compared(_Selecting, torch.ones(8, 64))


@_case("experts in a loop, each on the tokens that chose it (`torch.where`)")
def _experts() -> str | None:
    g = torch.Generator().manual_seed(1)
    make = lambda: (torch.manual_seed(0), Experts())[1]  # noqa: E731
    return _compared(make, torch.randn(32, 16, generator=g), torch.randint(0, 5, (32,), generator=g))


@_case("more shapes than torch compiles (`dynamic=False`)")
def _shapes() -> str | None:
    model = lowtide.fit(_model(), budget="1 GB", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=3):
        for rows in range(2, 8):
            _step(model, torch.ones(rows, 64))
    return "not refused"


@_case("a gradient of a gradient (`create_graph=True`)")
def _double() -> str | None:
    model = lowtide.fit(_model(), budget="1 GB")
    x = torch.ones(8, 64, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    slope.square().sum().backward()
    return "not refused"


@_case("`nn.Embedding(sparse=True)`")
def _sparse() -> str | None:
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Linear(16, 16))  # noqa: E731
    return _compared(make, torch.arange(8))


@_case("complex numbers")
def _complex() -> str | None:
    make = lambda: nn.Sequential(nn.Linear(16, 16, dtype=torch.complex64), _Magnitude())  # noqa: E731
    torch.manual_seed(0)
    return _compared(make, torch.ones(4, 16, dtype=torch.complex64))


class _Magnitude(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()


@_case("compiled autograd")
def _compiled_autograd() -> str | None:
    model = lowtide.fit(_model(), budget=CAPACITY)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        _step(model, torch.ones(8, 64))
    return "not refused"


@_case("a saved plan for other shapes")
def _other_shapes() -> str | None:
    model = _model()
    plan = lowtide.plan(model, (torch.ones(8, 64),), budget=CAPACITY)
    _step(lowtide.fit(model, plan=plan), torch.ones(16, 64))
    return None


@_case("a damaged plan file")
def _damaged() -> str | None:
    model = _model()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        lowtide.plan(model, (torch.ones(8, 64),), budget=CAPACITY).save(file)
        file.write_text(file.read_text().replace('"time_s":', '"time_s":1', 1))
        lowtide.fit(model, plan=file)
    return None


@_case("pickling a fitted model")
def _pickled() -> str | None:
    model = lowtide.fit(_model(), budget=CAPACITY)
    loss = _step(model, torch.ones(8, 64))
    again = pickle.loads(pickle.dumps(model))
    same = torch.equal(loss, _step(again, torch.ones(8, 64)))
    return f"not refused: a plain model, {'bits equal' if same else 'BITS DIFFER'}"


def attempt_all(hand_over: HandOver) -> None:
    """Tries every case, in a process of its own."""
    fresh_profiles()
    warnings.simplefilter("ignore")
    for what, attempt in CASES.items():
        torch._dynamo.reset()
        try:
            outcome, message = attempt() or "not refused", ""
        except Exception as error:
            kind, _, message = message_of(error).replace(f"{tempfile.gettempdir()}/", "").partition(": ")
            outcome = kind if isinstance(error, lowtide.LowtideError) else f"{kind} (torch's own)"
        hand_over({"what": what, "outcome": outcome, "message": message})
        sys.stderr.write(f"  refusals: {what}: {outcome}\n")
