"""One network of the zoo: trained plainly twice, then inside a budget, and everything compared bit by bit.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import random
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from tests.zoo.registries import Found, NotApplicable, network_of, said
from torch import nn

import lowtide
from benchmarks.runner import HandOver

STEPS = 2
CAPACITY, MIDDLE, SMALLEST = BUDGETS = ("100% of plain", "60% of plain", "smallest")
MOST_RAISED = 3
"""How often the smallest budget may be raised to what the refusal of a later step names."""
Row = dict[str, Any]
Trace = dict[str, Any]


def seed_everything() -> None:
    """Every generator that a network may draw from."""
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)


def generators() -> Trace:
    """The state of every generator that a network may draw from."""
    name, keys, *rest = numpy.random.get_state()
    return {
        "generator of torch": torch.get_rng_state(),
        "generator of random": random.getstate(),
        "generator of numpy": (name, keys.tolist(), *rest),
    }


def state_of(model: nn.Module) -> Trace:
    """Copies of parameters and buffers."""
    found = {f"parameter {n}": p.detach().clone() for n, p in model.named_parameters()}
    return found | {f"buffer {n}": b.detach().clone() for n, b in model.named_buffers()}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, found: Found, beginning: Callable[[int], None] = lambda _: None
) -> Trace:
    """Two steps on two batches; returns losses, gradients, and what is left behind."""
    seed_everything()
    trace: Trace = {}
    for step, batch in enumerate(found.batches(STEPS)):
        beginning(step)
        loss = found.loss_of(model, batch)
        loss.backward()
        trace[f"loss of step {step}"] = loss.detach().clone()
        del loss
        # No local name may hold a gradient when the next step begins: it would lie in that step's way.
        trace |= {
            f"gradient of {n} in step {step}": None if p.grad is None else p.grad.to_dense().clone()
            for n, p in model.named_parameters()
        }
        optimizer.step()
        optimizer.zero_grad()
    return trace | state_of(model) | generators()


def differences(left: Trace, right: Trace) -> list[str]:
    """The names of what is not the same bits."""
    found = []
    for name in [*left, *(n for n in right if n not in left)]:
        a, b = left.get(name), right.get(name)
        same = (
            torch.equal(a, b) and a.dtype == b.dtype
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
            else a is b or a == b
        )
        if not same:
            found.append(name)
    return found


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, as most of these networks are trained."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def plainly(found: Found, wrap: Callable[[nn.Module], Any] = lambda m: m) -> Trace:
    """Plain training, or under a compiler of torch's own."""
    model = found.build()
    call = wrap(model)
    optimizer = optimizer_of(model)
    if call is model:
        return train(model, optimizer, found)
    other = Found(found.text, found.build, found.batches, lambda _, b: found.outputs(call, b), found.loss)
    return train(model, optimizer, other)


class Fitted:
    """One network, trained from the same start at every budget."""

    def __init__(self, found: Found, expected: Trace) -> None:
        self.found, self.expected = found, expected
        self._begin("100% of plain")

    def _begin(self, budget: str | int) -> None:
        """Fits a new model: some keep what they compute in attributes, and compute something else the next time."""
        torch._dynamo.reset()  # each stands for a process of its own, which meets this code for the first time
        self.model = self.found.build()
        self.start = {n: t.detach().clone() for n, t in self._tensors().items()}
        self.optimizer = optimizer_of(self.model)
        self.untrained = self.optimizer.state_dict()
        lowtide.fit(self.model, budget=budget, optimizer=self.optimizer, work=200)

    def _tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters()) | dict(self.model.named_buffers())

    def _now(self) -> Trace:
        return state_of(self.model) | generators()

    def _note(self, step: int) -> None:
        """Keeps what there is before a step."""
        self._before = (step, self._now())

    def restart(self) -> None:
        """Parameters, buffers, optimizer state and gradients as before the first step."""
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(self.start[name])
        self.optimizer.load_state_dict(self.untrained)
        self.optimizer.zero_grad()

    def row(self, label: str, budget: str | int) -> Row:
        """Trains at a budget and compares.

        A step may be another program than the one that named the smallest budget: of other shapes, beside what the model
        keeps in attributes, or with other code between its graphs. Then all begins anew at the budget that the refusal
        names; the table counts the networks of which that is so.
        """
        raised: list[int] = []
        while True:
            if label != CAPACITY:
                lowtide.unfit(self.model)
                self._begin(budget)
            self.restart()
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    trace = train(self.model, self.optimizer, self.found, self._note)
                break
            except lowtide.LowtideError as error:
                step, before = self._before
                changed = differences(before, self._now())
                named_B = error.smallest_B if isinstance(error, lowtide.InfeasibleBudget) else None
                if label == SMALLEST and named_B and not changed and len(raised) < MOST_RAISED:
                    raised.append(named_B)
                    budget = named_B
                    continue
                asked_less = isinstance(error, lowtide.InfeasibleBudget) and label == CAPACITY and not step
                return {
                    "outcome": "no plan" if asked_less else "refused", "message": refusal(error),
                    "changed": changed[:5], "step": step, "raised_B": raised,
                    "asked_B": budget if isinstance(budget, int) else 0,
                }  # fmt: skip
        different = differences(self.expected, trace)
        seen = lowtide.memory_stats(self.model)
        graphs = len(self.model.lowtide.session.executors)
        row: Row = {
            "outcome": "different" if different else "equal", "different": different[:8], "count": len(different),
            "budget_B": seen.budget_B, "reserved_B": seen.reserved_B, "kind": seen.budget_kind, "graphs": graphs,
            "misplaced": seen.misplaced_allocations, "spills": seen.spills, "unused places": seen.planned_misses,
            "overflows": seen.overflows, "served as planned": seen.planned_hits, "raised_B": raised,
            "warnings": sorted({str(w.message)[:300] for w in caught if issubclass(w.category, lowtide.BudgetWarning)}),
        }  # fmt: skip
        if different:
            row["as compiled"] = self.as_compiled(trace)
        return row

    def budgets(self) -> Iterator[tuple[str, str | int]]:
        """All that plain PyTorch takes, the least that lowtide names, and about 60 % of plain in between."""
        yield CAPACITY, CAPACITY
        most_B = lowtide.memory_stats(self.model).budget_B
        least_B = self.smallest_B()
        if most_B:
            yield MIDDLE, max(int(0.6 * most_B), (least_B + most_B) // 2)
        yield SMALLEST, least_B

    def smallest_B(self) -> int:
        """The smallest budget that lowtide itself names to a new model, by asking for one byte."""
        lowtide.unfit(self.model)
        self._begin(1)
        seed_everything()
        try:
            self.found.loss_of(self.model, self.found.batches(1)[0])
        except lowtide.InfeasibleBudget as error:
            if error.smallest_B is not None:
                return error.smallest_B
            raise
        raise AssertionError("a step ran inside one byte")

    def as_compiled(self, trace: Trace) -> list[str]:
        """Which of torch's own compilers leaves the bits that lowtide left, and which those of plain PyTorch."""
        said_of = []
        for backend in ("eager", "aot_eager"):
            torch._dynamo.reset()
            try:
                other = plainly(self.found, lambda m, backend=backend: torch.compile(m, backend=backend))
            except Exception as error:
                said_of.append(f"{backend}: {said(error)}")
                continue
            if not differences(other, trace):
                said_of.append(f"{backend}: the same as here")
            if not differences(other, self.expected):
                said_of.append(f"{backend}: the same as plain")
        return said_of


def refusal(error: BaseException) -> str:
    """An error's kind and the first two sentences of its text."""
    text = " ".join(str(error).split())
    sentences = re.split(r"(?<=[.!?]) ", text)
    return f"{type(error).__name__}: {' '.join(sentences[:2])[:600]}"


def measure(hand_over: HandOver, name: str) -> None:
    """Everything about one network, in a process of its own: a row at a time, each with the processor's seconds so far."""

    def tell(row: Row) -> None:
        hand_over(row | {"at_s": round(time.process_time(), 1)})

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = network_of(name)
    except NotApplicable as error:
        tell({"outcome": "not applicable", "message": str(error)})
        return
    except Exception as error:  # of the family's own code, before lowtide has anything to do with it
        tell({"outcome": "not applicable", "message": f"cannot be built: {said(error)}"})
        return
    tell({"found": found.text})
    warnings.simplefilter("ignore")
    expected = plainly(found)
    repeated = differences(expected, plainly(found))
    if repeated:
        tell(
            {"outcome": "not applicable", "message": f"plain PyTorch does not repeat itself: {', '.join(repeated[:3])}"}
        )
        return
    label = CAPACITY
    try:
        fitted = Fitted(found, expected)
        for label, budget in fitted.budgets():
            row = {"budget": label} | fitted.row(label, budget)
            tell(row)
            if row["outcome"] == "refused" and not row["message"].startswith("InfeasibleBudget"):
                return
    except lowtide.LowtideError as error:
        tell({"budget": label, "outcome": "refused", "message": refusal(error)})
    except Exception as error:
        last = traceback.format_exc()[-1500:]
        tell({"budget": label, "outcome": "failed", "message": said(error), "trace": last})
