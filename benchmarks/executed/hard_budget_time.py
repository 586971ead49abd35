"""Step time inside a hard budget over plain eager's in the same kind of memory: an arena without a limit, and stock malloc."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.executed.hard_budget_prediction import UNLIMITED_B, adamw
from benchmarks.networks import Subject, loss_in
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.arena import Arena

STRETCHES = ("forward and backward", "whole step")
TARGET = 1.02
COLUMNS = (
    "network", "stretch", "eager in an arena s", "wall / eager in an arena", "A/A", "A/A spread", "eager on malloc s",
    "wall / eager on malloc",
)  # fmt: skip


class Side:
    """A model with its optimizer and the memory it is served from."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, arena: Arena | None = None) -> None:
        self.model, self.optimizer, self.arena = model, optimizer, arena

    def variant(self, batch: dict[str, Any], stretch: str) -> Callable[[], Callable[[], None]]:
        """What the stopwatch calls, and what that returns to be timed."""

        def run() -> None:
            with contextlib.nullcontext() if self.arena is None else self.arena.engaged():
                loss_in(self.model(**batch)).backward()
                if stretch == "whole step":
                    self.optimizer.step()
                self.optimizer.zero_grad()

        return lambda: run


def measure(subject: Subject, rounds: int) -> list[list[object]]:
    """One network's rows: AdamW, the budget that keeping everything needs."""
    torch._dynamo.reset()
    batch = subject.batch()
    model = subject.build()
    optimizer = adamw(model)
    keep_all = lowtide.plan(model, kwargs=batch, budget=UNLIMITED_B, optimizer=optimizer)
    hard_budget = Side(lowtide.fit(model, plan=keep_all, budget=keep_all.reserved_B, optimizer=optimizer), optimizer)
    arena = Arena(4 * keep_all.reserved_B, small_zone_B=2**20, persistent_B=0)
    plain, on_malloc = subject.build(), subject.build()
    in_arena, stock = Side(plain, adamw(plain), arena), Side(on_malloc, adamw(on_malloc))
    sides = {"wall": hard_budget, "arena": in_arena, "arena again": in_arena, "malloc": stock}
    found = interleave({f"{n}, {s}": side.variant(batch, s) for n, side in sides.items() for s in STRETCHES}, rounds)
    stats = lowtide.memory_stats(model)
    assert stats.misplaced_allocations == stats.spills == 0, "what left its place is not what is to be timed"
    return [
        [
            subject.name, stretch, f"{found[f'arena, {stretch}'].median_s:.3f}",
            f"{ratio(found[f'wall, {stretch}'], found[f'arena, {stretch}']):.3f}",
            f"{ratio(found[f'arena again, {stretch}'], found[f'arena, {stretch}']):.3f}",
            spread(found[f"arena again, {stretch}"], found[f"arena, {stretch}"]),
            f"{found[f'malloc, {stretch}'].median_s:.3f}",
            f"{ratio(found[f'wall, {stretch}'], found[f'malloc, {stretch}']):.3f}",
        ]
        for stretch in STRETCHES
    ]  # fmt: skip
