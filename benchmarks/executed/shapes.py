"""Twelve sequence lengths in one run of GPT-2, at one budget: what a further shape costs, and how good its plan is.

`python -m benchmarks.executed.shapes` writes `results/shapes.md` and `.json`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.executed.first_step import Stages
from benchmarks.networks import WITHOUT_DROPOUT
from benchmarks.results_file import fresh_profiles, table, write

RESULTS = "shapes"
LENGTHS = (128, 256, 192, 64, 96, 224, 160, 32, 240, 112, 80, 208)
SEQUENCES = 6
ALPHA = 0.25
LATER = 3


def tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (SEQUENCES, length), generator=torch.Generator().manual_seed(length))


class Side:
    """A model and its optimizer, from a fixed seed."""

    def __init__(self) -> None:
        self.model: Any = WITHOUT_DROPOUT["gpt2"].build()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self, length: int) -> tuple[float, torch.Tensor]:
        """One training step: its seconds and its loss."""
        batch = tokens(length)
        began_s = time.perf_counter()
        loss: torch.Tensor = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began_s, loss.detach()


def budget_B() -> int:
    """At alpha between the smallest budget and keeping everything, for the longest sequence."""
    side = Side()
    batch = tokens(max(LENGTHS))
    plain = lowtide.plan(
        side.model, kwargs={"input_ids": batch, "labels": batch}, budget=2**50, optimizer=side.optimizer
    )
    return int(plain.floor_B + ALPHA * (plain.reserved_B - plain.floor_B))


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def stages() -> Stages:
    """Seconds of what lowtide does for a shape."""
    from lowtide.session import session

    found = Stages()
    found.wrap(session, "measure_step", "profile")
    found.wrap(session, "plan_step", "plan")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    lengths = parser.parse_args(arguments).lengths
    torch.set_num_threads(2)
    fresh_profiles()
    most_B = budget_B()
    fresh_profiles()  # the run below finds empty caches
    spent = stages()
    plain, ours = Side(), Side()
    lowtide.fit(ours.model, budget=most_B, optimizer=ours.optimizer)
    rows: list[list[object]] = []
    numbers: dict[str, Any] = {"budget_B": most_B}
    same = True
    for length in lengths:
        spent.seconds_s.clear()
        first_s, loss = ours.step(length)
        alike = torch.equal(loss, plain.step(length)[1]) and equal(ours.model, plain.model)
        profile_s, plan_s = spent.seconds_s["profile"], spent.seconds_s["plan"]
        later = [(ours.step(length), plain.step(length)) for _ in range(LATER)]
        alike &= equal(ours.model, plain.model)
        same &= alike
        later_s, plain_s = min(a[0] for a, _ in later), min(b[0] for _, b in later)
        capture_s = max(0.0, first_s - profile_s - plan_s - later_s)
        plan = ours.model.lowtide.plan
        record = plan.record
        stats = lowtide.memory_stats(ours.model)
        taken_over = record.outcome.stats.get("winner") == "start"
        made = "searched" if not record.begun_from else "taken over" if taken_over else "bettered"
        numbers[str(length)] = {
            "first_s": first_s, "capture_s": capture_s, "profile_s": profile_s, "plan_s": plan_s, "later_s": later_s,
            "plain_s": plain_s, "equal": alike, "begun_from": record.begun_from, "made": made,
            "gap": plan.gap, "overhead": plan.overhead, "status": plan.status.name,
            "reserved_B": plan.reserved_B, "most_B": stats.reserved_B,
        }  # fmt: skip
        rows.append([
            length, f"{first_s:.2f}", f"{capture_s:.2f}", f"{profile_s:.2f}", f"{plan_s:.2f}", f"{later_s:.2f}",
            f"{plain_s:.2f}", "equal" if alike else "DIFFERENT", made, f"{plan.gap:.1%}", f"{plan.overhead:.1%}",
            f"{plan.reserved_B / 1e6:.0f}",
        ])  # fmt: skip
        print(rows[-1], flush=True)
        same &= stats.reserved_B <= most_B
    tables = [
        table(
            f"Twelve lengths inside {most_B / 1e6:.0f} MB",
            ["length", "first step s", "of that capture s", "profile s", "plan s", "later step s", "plain step s", "bits",
             "plan", "gap", "predicted overhead", "reserved MB"], rows, len(lengths),
            f"GPT-2 (4 layers, width 256, {SEQUENCES} sequences), dynamic=None, AdamW, one budget for all lengths: alpha {ALPHA} "
            "of the longest. The first length is captured with fixed sizes, the second one with sizes that vary, which serves "
            "all others. A plan is searched from nothing, or taken over from the most similar length and made to fit, or "
            "bettered within shape_limit_s. Capture is what is left of the first step when profile, plan and a later step are "
            "taken off. Times are the least of three steps, ours and plain alternating.",
        )
    ]  # fmt: skip
    path = write(RESULTS, "Shapes: a plan per sequence length", tables, numbers)
    print(path.read_text())
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
