"""Every argument of every public function is used, or refused by an error that names it, what was given and what is
wanted, before anything has changed; numbers of other libraries work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowtide
from lowtide.units import Budget, parse_rate

NAN = float("nan")
ODD: list[Any] = [None, len, "what", -1, NAN, float("inf"), 10**30, True, [1], {}, object(), b"x", torch.ones(3)]
X = torch.ones(4, 8)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def _step(**changed: Any) -> object:
    model = _model()
    given: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters()), "budget": "1GiB", "loss_fn": None}
    given |= {"model": model} | changed
    step = lowtide.TrainStep(**given)
    step.close()
    return step


def _fit(**changed: Any) -> object:
    given = {"model": _model(), "budget": "1GiB"} | changed
    return lowtide.unfit(lowtide.fit(**given))


def _max_batch(**changed: Any) -> object:
    given: dict[str, Any] = {"make_batch": lambda n: torch.ones(n, 8), "model": _model(), "budget": "1GiB"}
    return lowtide.max_batch(**(given | changed))


def _plan(**changed: Any) -> object:
    return lowtide.plan(**({"model": _model(), "args": (X,), "budget": "1GiB"} | changed))


def _frontier(**changed: Any) -> object:
    return lowtide.frontier(**({"model": _model(), "args": (X,), "points": 2} | changed))


def _fits(**changed: Any) -> object:
    return lowtide.fits(**({"model": _model(), "args": (X,), "device": "24GiB"} | changed))


def _plan_file(**changed: Any) -> object:
    return lowtide.plan_file(**({"path": "none.json", "budget": "1GiB"} | changed))


def _frontier_file(**changed: Any) -> object:
    return lowtide.frontier_file(**({"path": "none.json"} | changed))


def _eager(**changed: Any) -> object:
    return lowtide.eager(**({"budget": "1MiB"} | changed))


def _backend(**changed: Any) -> object:
    torch._dynamo.reset()
    given = {"options": {"budget": "1GiB"}} | changed
    return torch.compile(_model(), backend="lowtide", **given)(X)


_WHOLE = ["seed", "work"]
WRONG: dict[Callable[..., object], dict[str, list[Any]]] = {
    _fit: {
        "model": ODD,
        "budget": ODD,
        "optimizer": ODD[1:],
        "plan": [v for v in ODD if v is not None],
        "share": ODD[1:],
        "scope": ODD,
        "host_budget": ODD[1:],
        "numerics": ODD[1:],
        "without": [len, "what", -1, [1], object(), True],
        **dict.fromkeys(_WHOLE, ODD),
        "time_limit_s": [len, "what", -1, NAN, True, [1]],
        "shape_limit_s": [len, "what", -1, NAN, True, [1]],
        "dynamic": [len, "what", -1, NAN, [1]],
        "watch": ["what", -1, NAN, [1]],
    },
    _plan: {
        "model": ODD,
        "args": [None, len, "what", -1, X, {"x": X}],
        "kwargs": [len, "what", -1, {1: X}, [X]],
        "budget": ODD,
        "machine": [len, "what", -1, True],
        "save_graph": [len, -1, True],
        "dynamic": ["what", -1],
        "watch": ["what", -1],
        **dict.fromkeys(_WHOLE, ODD),
    },
    _frontier: {
        "model": ODD,
        "args": [None, X],
        "points": ODD,
        "baselines": [None, "what", 1],
        "watch": ["what", -1],
        "time_limit_s": ["what", -1, NAN],
        **dict.fromkeys(_WHOLE, ODD),
    },
    _fits: {
        "model": ODD,
        "args": [None, X],
        "device": ODD,
        "reserve": ODD[1:],
        "vary_only": [["nothing:0"], ["input:a"]],
        "watch": ["what", -1],
        **dict.fromkeys(_WHOLE, ODD),
    },
    _max_batch: {
        "make_batch": [None, "what", -1, X, _model()],
        "model": ODD,
        "budget": ODD,
        "low": ODD,
        "high": [v for v in ODD[1:] if not isinstance(v, int) or v < 1],
        "multiple_of": ODD,
        "overhead_limit": [len, "what", -1, NAN, True],
        "verify": [None, "what", 1],
        "loss": ["what", -1],
        **dict.fromkeys(_WHOLE, ODD),
    },
    _step: {
        "model": ODD,
        "loss_fn": ["what", -1, NAN],
        "optimizer": ODD,
        "budget": ODD,
        "targets": ODD,
        "autocast": [len, "bfloat16", -1, True],
        "clip_norm": [len, "what", -1, NAN, True, 0.0],
        "norm_type": [None, len, "what", -1, NAN],
        "accumulate": [*ODD, 0],
        "master_weights": [None, "what", 1],
        **dict.fromkeys(_WHOLE, ODD),
    },
    _plan_file: {
        "path": [None, len, -1, True, "nowhere.json"],
        "budget": ODD,
        "repeat": ["what", -1, {"layer": 0}, {"layer": "what"}],
        "link": [len, "what", -1, NAN, True],
        **dict.fromkeys(_WHOLE, ODD),
    },
    _frontier_file: {"path": [None, len, -1, "nowhere.json"], "points": ODD, **dict.fromkeys(_WHOLE, ODD)},
    _eager: {
        "budget": [*ODD, "60% of plain"],
        "policy": ODD,
        "host_budget": ODD[1:],
        "link": ODD[1:],
        "model": ["what", len, -1, [1]],
        "optimizer": ["what", len, -1, [1]],
        "record": [len, -1, True],
    },
    _backend: {"options": [{"budget": v} for v in ODD] + [{"budget": "1GiB", "seed": "what"}, {"bugdet": 1}, {}]},
    lambda **k: lowtide.unfit(*k.values()): {"model": ODD},
    lambda **k: lowtide.memory_stats(*k.values()): {"model": ODD[1:]},
    lambda **k: lowtide.snapshot(*k.values()): {"model": ODD[1:]},
    lambda **k: lowtide.misplaced_allocations(*k.values()): {"model": ODD[1:]},
    lambda **k: lowtide.transfers(*k.values()): {"model": ODD[1:]},
    lambda **k: lowtide.install_cuda(*k.values()): {"budget": ODD},
    lambda **k: lowtide.Plan.load(*k.values()): {"path": [None, len, 0, True]},
    lambda **k: lowtide.Frontier.load(*k.values()): {"path": [None, len, 0, True]},
    lambda **k: parse_rate(*k.values()): {"text": ODD},
}


def _cases() -> Iterator[Any]:
    for call, arguments in WRONG.items():
        for name, values in arguments.items():
            yield pytest.param(call, name, values, id=f"{call.__name__}-{name}")


@pytest.mark.parametrize(("call", "name", "values"), list(_cases()))
def test_what_cannot_be_used_is_refused(call: Callable[..., object], name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(lowtide.LowtideError) as caught:
            call(**{name: value})
        assert len(str(caught.value)) > 30


@pytest.mark.parametrize("number", [np.int64(2**30), np.uint32(2**30), np.float64(2**30), torch.tensor(2**30), 2.0**30])
def test_numbers_of_other_libraries_are_numbers(number: Any) -> None:
    assert lowtide.parse_budget(number) == Budget(size_B=2**30)


def test_integers_of_numpy_are_integers() -> None:
    model = lowtide.fit(_model(), np.int64(2**30), seed=np.int32(3), work=np.int64(200), time_limit_s=np.float32(5))
    model(X).sum().backward()
    lowtide.unfit(model)


def test_a_budget_is_read_exactly() -> None:
    assert lowtide.parse_budget(str(2**62 + 1)).size_B == 2**62 + 1
    for text in ("1" * 400, "9" * 5000, "1" * 40, f"{2**63}", "9e400", "9" * 60 + "% of plain"):
        with pytest.raises(lowtide.BudgetError, match="write bytes"):
            lowtide.parse_budget(text)
    for budget in (Budget(), Budget(size_B=-1), Budget(size_B=1, of_plain=0.5), Budget(of_plain=NAN)):
        with pytest.raises(lowtide.BudgetError, match="write bytes"):
            lowtide.parse_budget(budget)


def test_what_is_no_model_says_what_to_give() -> None:
    with pytest.raises(lowtide.ArgumentError, match=r"is a class.*Linear\(\.\.\.\)"):
        lowtide.fit(nn.Linear, "1GiB")  # type: ignore[type-var]
    with pytest.raises(lowtide.ArgumentError, match=r"torch\.compile"):
        lowtide.fit(lambda x: x, "1GiB")  # type: ignore[type-var]
    with pytest.raises(lowtide.ArgumentError, match=r"weight of the model has no shape yet"):
        lowtide.fit(nn.LazyLinear(4), "1GiB")


def test_a_plan_is_written_to_a_path() -> None:
    plan = _plan(work=200)
    for write in (plan.save, plan.save_graph, plan.to_html):  # type: ignore[attr-defined]
        with pytest.raises(lowtide.ArgumentError, match="no path"):
            write(1)
    with pytest.raises(lowtide.ArgumentError, match="top=-1"):
        plan.explain(top=-1)  # type: ignore[attr-defined]
