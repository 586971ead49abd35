"""Bytes reserved, said before the first step and seen after three: one network at every budget.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.networks import Subject, loss_in
from lowtide.device.arena import Arena, ArenaStats
from lowtide.ir.plan import PlanRecord
from lowtide.results.plan import Plan

ALPHAS = (0.75, 0.5, 0.25, 0.1, 0.05)
LABELS = ("keep-all", *ALPHAS, "smallest")
STEPS = 3
TOLERANCE = 0.01
"""How far the bytes reserved may be from the prediction, over (reserved - persistent)."""
UNLIMITED_B = 2**50

COLUMNS = (
    "network", "alpha", "budget", "of plain", "predicted reserved", "observed reserved", "error", "live peak", "packing",
    "planned hits", "departures", "spills", "overhead", "bits",
)  # fmt: skip
LIMITS = (
    "network", "operators", "persistent", "proved floor", "smallest named", "over the floor", "keep-all", "plain, live",
    "plain, best fit",
)  # fmt: skip


@dataclass(frozen=True)
class Bits:
    """What a few steps left behind: losses, parameters, buffers, generator."""

    tensors: tuple[torch.Tensor, ...]

    def equal(self, other: Bits) -> bool:
        """Bit by bit, -0 and 0 apart."""
        pairs = zip(self.tensors, other.tensors, strict=True)
        return all(torch.equal(a, b) for a, b in pairs)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of every table here."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def loss_within(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """The loss that a subject computes itself."""
    return loss_in(model(**batch))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Any],
    steps: int = STEPS,
    loss_of: Callable[[nn.Module, dict[str, Any]], torch.Tensor] = loss_within,
) -> list[torch.Tensor]:
    """Some training steps; returns the losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def bits_of(model: nn.Module, losses: list[torch.Tensor]) -> Bits:
    """Copies of what the steps left behind."""
    state = (t.detach().clone() for t in (*model.parameters(), *model.buffers()))
    return Bits((*losses, *state, torch.get_rng_state()))


def resident_B(model: nn.Module, batch: dict[str, Any]) -> int:
    """Bytes of the distinct storages of parameters, buffers and the batch: there before the step, outside the arena."""
    tensors = (*model.parameters(), *model.buffers(), *batch.values())
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


class Prediction:
    """One network, fitted once and planned at every budget."""

    def __init__(self, subject: Subject) -> None:
        torch._dynamo.reset()
        self.name, self.batch = subject.name, subject.batch()
        model = subject.build()
        optimizer = adamw(model)
        self.keep_all = lowtide.plan(model, kwargs=self.batch, budget=UNLIMITED_B, optimizer=optimizer)
        assert self.keep_all.record.layout is not None, "a hard budget needs a C++ compiler"
        torch.manual_seed(7)
        self.expected = bits_of(model, train(model, optimizer, self.batch))
        self.plain = self._plain(subject)
        self.plain_B = resident_B(model, self.batch) + self.plain.peak_B
        self.model = subject.build()
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.optimizer = adamw(self.model)
        self.untrained = self.optimizer.state_dict()
        lowtide.fit(self.model, budget=self.keep_all.reserved_B, optimizer=self.optimizer)
        self.smallest_B = self._smallest_B()

    def _plain(self, subject: Subject) -> ArenaStats:
        """Plain eager in an arena with room for everything."""
        model = subject.build()
        arena = Arena(4 * self.keep_all.reserved_B, small_zone_B=2**20, persistent_B=0)
        with arena.engaged():
            train(model, adamw(model), self.batch, 2)
        return arena.stats()

    def _smallest_B(self) -> int:
        """The budget that the error of the floor tells to use; the floor where a plan fits into it."""
        self.model.lowtide.set_budget(self.keep_all.floor_B)
        try:
            train(self.model, self.optimizer, self.batch, 1)
        except lowtide.InfeasibleBudget as error:
            return error.smallest_B or self.keep_all.reserved_B
        return self.keep_all.floor_B

    def budget_B(self, label: float | str) -> int:
        """The budget of a row."""
        if isinstance(label, str):
            return {"keep-all": self.keep_all.reserved_B, "smallest": self.smallest_B}[label]
        return int(self.keep_all.floor_B + label * (self.keep_all.reserved_B - self.keep_all.floor_B))

    def row(self, label: float | str) -> tuple[list[object], list[str]]:
        """Plans at a budget, trains three steps from the start, and compares. Returns the row and the promises broken."""
        budget_B = self.budget_B(label)
        head = [self.name, label, mb(budget_B), f"{budget_B / self.plain_B:.0%}"]
        self.model.load_state_dict(self.start)
        self.optimizer.load_state_dict(self.untrained)
        self.optimizer.zero_grad()
        self.model.lowtide.set_budget(budget_B)
        torch.manual_seed(7)
        try:
            losses = train(self.model, self.optimizer, self.batch, 1)
            said: Plan = self.model.lowtide.plan  # of before the first step: nothing plans anew within one
            losses += train(self.model, self.optimizer, self.batch, STEPS - 1)
        except lowtide.InfeasibleBudget as error:
            smallest_B = error.smallest_B or self.keep_all.reserved_B
            broken = [f"{self.name}: the budget that an error names does not do"] if label == "smallest" else []
            return [*head, f"no plan: smallest {mb(smallest_B)}", *["-"] * (len(COLUMNS) - len(head) - 1)], broken
        seen, record = lowtide.memory_stats(self.model), said.record
        equal = self.expected.equal(bits_of(self.model, losses))
        error = prediction_error(record, seen.reserved_B)
        broken = [] if equal else [f"{self.name} at {label}: the bits differ"]
        broken += [f"{self.name} at {label}: over the budget"] if seen.reserved_B > budget_B or seen.spills else []
        broken += [f"{self.name} at {label}: the prediction is off"] if abs(error) > TOLERANCE else []
        assert record.layout is not None
        return [
            *head, mb(said.reserved_B), mb(seen.reserved_B), f"{error:+.2%}", mb(seen.peak_B), f"{record.layout.packing:.4f}",
            f"{seen.planned_hits / max(1, seen.planned_hits + seen.misplaced_allocations):.2%}", seen.misplaced_allocations, seen.spills,
            f"{said.overhead:.1%}", "equal" if equal else "DIFFERENT",
        ], broken  # fmt: skip

    def limits(self) -> list[object]:
        """The row of what bounds the others."""
        record, floor_B = self.keep_all.record, self.keep_all.floor_B
        return [
            self.name, len(record.graph.program), mb(record.fixed_B - record.reserve_B), mb(floor_B), mb(self.smallest_B),
            f"{self.smallest_B / floor_B:.3f}", mb(self.keep_all.reserved_B), mb(self.plain_B),
            mb(self.plain_B - self.plain.peak_B + self.plain.high_water_B),
        ]  # fmt: skip


def prediction_error(said: PlanRecord, reserved_B: int) -> float:
    """How far the bytes reserved are from the prediction, over what a plan can change."""
    return (reserved_B - said.reserved_B) / (said.reserved_B - (said.fixed_B - said.reserve_B))


def mb(size_B: float) -> str:
    """Bytes as decimal megabytes."""
    return f"{size_B / 1e6:.1f}"
