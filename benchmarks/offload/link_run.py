"""One network at one budget in a process of its own: moving over links of several rates, beside recomputing alone.

Prints one JSON list of rows. `python -m benchmarks.offload.link_run NAME SHARE RATES ROUNDS LIMIT`, SHARE of what the plan that
keeps everything reserves, RATES a JSON list of GB/s.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.networks import SUBJECTS, Subject, loss_in
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.heap import keep_warm

UNLIMITED = "12GiB"
KEPT = "keep all"


class Execution:
    """One network several times, each with its own plan."""

    def __init__(self, subject: Subject, limit_s: float) -> None:
        self.subject, self.limit_s, self.batch = subject, limit_s, subject.batch()
        self.models: dict[str, torch.nn.Module] = {}

    def add(self, name: str, budget: int | str, **moves: Any) -> lowtide.Plan:
        """Fits a fresh copy, trains one step, and says what the plan is.

        Raises:
            InfeasibleBudget: if there is none.
        """
        model = lowtide.fit(self.subject.build(), budget, time_limit_s=self.limit_s, **moves)
        self.models[name] = model
        self.step(name)
        plan = model.lowtide.plan
        assert plan is not None
        return plan

    def step(self, name: str) -> list[torch.Tensor]:
        """Forward and backward from the same generator; returns what they leave."""
        model = self.models[name]
        model.zero_grad()
        torch.manual_seed(3)
        loss = loss_in(model(**self.batch))
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    def timed(self, name: str) -> Callable[[], object]:
        """What is timed."""
        return lambda: self.step(name)


def run(name: str, share: float, rates: list[float], rounds: int, limit_s: float) -> list[dict[str, Any]]:
    """The rows of a network at a budget."""
    execution = Execution(SUBJECTS[name], limit_s)
    kept = execution.add(KEPT, UNLIMITED)
    budget_B = int(kept.reserved_B * share)
    plans: dict[str, lowtide.Plan | lowtide.InfeasibleBudget] = {}
    candidates: dict[str, dict[str, Any]] = {"recompute": {}}
    candidates |= {f"{rate:g} GB/s": {"host_budget": "8GiB", "link": f"{rate} GB/s"} for rate in rates}
    for variant, moves in candidates.items():
        try:
            plans[variant] = execution.add(variant, budget_B, **moves)
        except lowtide.InfeasibleBudget as error:
            plans[variant] = error
            sys.stderr.write(f"{name} {share} {variant}: {error}\n")
    keep_warm()
    right = execution.step(KEPT)
    there = [v for v, plan in plans.items() if isinstance(plan, lowtide.Plan)]
    equal = {v: all(torch.equal(a, b) for a, b in zip(execution.step(v), right, strict=True)) for v in there}
    before = {v: lowtide.transfers(execution.models[v]).observed for v in there}
    variants = {v: (lambda v=v: execution.timed(v)) for v in (KEPT, *there)} | {"again": lambda: execution.timed(KEPT)}
    times = interleave(variants, rounds)
    rows = []
    for variant, plan in plans.items():
        row: dict[str, Any] = {"network": name, "share": share, "budget_B": budget_B, "variant": variant}
        if isinstance(plan, lowtide.InfeasibleBudget):
            rows.append(row | {"plan": False, "floor_B": plan.floor_B, "smallest_B": plan.smallest_B})
            continue
        record, was, now = plan.record, before[variant], lowtide.transfers(execution.models[variant]).observed
        steps = rounds + 2
        stats = lowtide.memory_stats(execution.models[variant])
        rows.append(
            row
            | {
                "plan": True,
                "bits": equal[variant],
                "reserved_B": stats.reserved_B,
                "departures": stats.misplaced_allocations,
                "predicted": record.overhead,
                "bound": record.bound_overhead,
                "measured": ratio(times[variant], times[KEPT]) - 1,
                "spread": spread(times["again"], times[KEPT]),
                "step_s": times[variant].median_s,
                "predicted_s": record.time_s,
                "predicted_stall_s": record.stall_s,
                "stall_s": (now.stalled_s - was.stalled_s) / steps,
                "sent_B": (now.to_host.moved_B - was.to_host.moved_B) / steps,
                "planned_sent_B": record.sent_B,
                "share_of_link": now.to_host.share,
            }
        )
    return rows


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    name, share, rates, rounds, limit_s = arguments
    torch.set_num_threads(1)
    rows = run(name, float(share), json.loads(rates), int(rounds), float(limit_s))
    sys.stdout.write(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
