"""Moving, carried out over links of stated rates: predicted and measured stalls and step times.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.networks import SUBJECTS, Subject, loss_in
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of
from benchmarks.results_file import MissingRow, table
from benchmarks.runner import answer_of
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.heap import keep_warm
from lowtide.units import format_B

NETWORKS = ("gpt2", "resnet50", "unet")
SHARES = (0.5, 0.33)
RATES_GBps = (0.5, 1, 4)
KEYS = tuple(f"{name} {share}" for name in NETWORKS for share in SHARES)
MOST_s = 20.0  # of planning, per budget
_LINK_COLUMNS = (
    "network", "budget", "of keep-all", "link", "overhead predicted", "bound", "measured", "plain against itself", "bits equal",
    "sent per step", "stall predicted", "stall measured", "departures",
)  # fmt: skip
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


def run_over(name: str, share: float, rates: list[float], rounds: int, limit_s: float) -> list[Row]:
    """The rows of a network at a budget, over links of several rates and without one, in a process of its own."""
    torch.set_num_threads(1)
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


def _measure_links(key: str, effort: Effort) -> list[Row]:
    name, share = key.split()
    rates = RATES_GBps[:1] if effort.quick else RATES_GBps
    rounds = 2 if effort.quick else effort.rounds
    found = answer_of(run_over, name, float(share), rates, rounds, min(MOST_s, effort.limit_s), quiet=False)
    if any(row["plan"] and (not row["bits"] or row["departures"]) for row in found):
        raise MissingRow(f"{key}: {found}")
    return list(found)


def _links(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    note = (
        "`lowtide.fit` at a share of what keeping everything reserves, one thread, forward and backward, medians of interleaved "
        "rounds in one process; overheads are over keeping everything in an arena. Recompute: nothing may move. Else values may "
        "move to host memory outside the arena at the rate stated, each way, which the copy engines keep. Stall: seconds of a "
        "step in which compute waits for a copy. The machine had other work while all but the first key were measured: their seconds, "
        "stalls above all, are rough, as the column of plain against itself shows. Bits: loss and gradients, `torch.equal` to keeping everything."
    )
    return [table("Over links of stated rates", _LINK_COLUMNS, [_link_cells(r) for r in rows], len(rows), note)]


def _link_cells(row: Row) -> list[str]:
    head = [row["network"], format_B(row["budget_B"]), f"{row['share']:.0%}", row["variant"]]
    if not row["plan"]:
        return [*head, _why_none(row), *["-"] * (len(_LINK_COLUMNS) - 5)]
    return [
        *head,
        percent(row["predicted"]),
        percent(row["bound"]),
        percent(row["measured"]),
        row["spread"],
        "yes",
        format_B(row["sent_B"]),
        f"{row['predicted_stall_s'] * 1e3:.1f} ms",
        f"{row['stall_s'] * 1e3:.1f} ms",
        str(row["departures"]),
    ]


def _why_none(row: Row) -> str:
    if row["floor_B"] > row["budget_B"]:
        return f"proved impossible: floor {format_B(row['floor_B'])}"
    return f"no plan below {format_B(row['smallest_B'])}" if row["smallest_B"] is not None else "no plan"


LINK_PART = Part("links", KEYS, _measure_links, _links)
