"""Three hundred steps with changing shapes inside a budget: the same bits as plainly, and nothing drifts."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec
import torch
from tests.eager_engine.comparison import everything

import lowtide
from benchmarks.eager.networks import NETWORKS
from benchmarks.eager.running import peak_of, prepare
from benchmarks.fidelity.soak import drift, growth_MB, rss_B
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import table
from benchmarks.runner import answer_of
from lowtide.eager_engine.eager_stats import EagerStats
from lowtide.units import format_B

KEYS = ("lengths", "treelstm")
POLICY = "tide-memory"
STEPS = 300
SHARE = 0.5
EVERY = 25
"""Steps between two looks at every bit."""
EVALUATE = 50
"""Steps between two evaluations."""
_COLUMNS = (
    "network", "steps", "budget", "most held", "bits", "departures", "evictions", "reruns", "time over plain",
    "step time, last over second quarter (plain)", "RSS growth after the first quarter MB (plain)",
)  # fmt: skip


def side(name: str, steps: int, budget_B: int | None) -> dict[str, Any]:
    """One side of a soak, plainly or inside a budget, in a process of its own: what was seen."""
    prepare()
    network = NETWORKS[name]
    module, optimizers = network.start()
    seen: dict[str, Any] = {"losses": [], "seconds_s": [], "rss_B": [], "left": [], "held_B": []}
    inside = (
        contextlib.nullcontext()
        if budget_B is None
        else lowtide.eager(budget_B, policy=POLICY, model=module, optimizer=optimizers)
    )
    with inside as run:
        for number, batch in enumerate(network.batches(steps)):
            start = time.perf_counter()
            seen["losses"].append(network.step(module, optimizers, batch).item().hex())
            seen["seconds_s"].append(time.perf_counter() - start)
            if number % EVALUATE == EVALUATE - 1:
                module.eval()
                with torch.no_grad():
                    seen["losses"].append(module(*batch).item().hex())
                module.train()
            if number % EVERY == EVERY - 1:
                seen["left"].append(everything(module, optimizers))
            seen["rss_B"].append(rss_B())
            if budget_B is not None:
                seen["held_B"].append(run.stats().peak_B)
    seen["left"].append(everything(module, optimizers))
    if budget_B is not None:
        seen["stats"] = statistics_of(run.stats())
    return seen


def statistics_of(stats: EagerStats) -> dict[str, Any]:
    """What rows keep of the statistics, two by the names that earlier rows have."""
    return msgspec.to_builtins(stats) | {"departures": stats.divergences, "reruns": stats.recomputations}


def _measure(name: str, effort: Effort) -> list[Row]:
    steps = 50 if effort.quick else STEPS
    budget_B = int(answer_of(peak_of, name) * SHARE)
    plain = answer_of(side, name, steps, None)
    inside = answer_of(side, name, steps, budget_B)
    return [
        {
            "network": name,
            "steps": steps,
            "budget_B": budget_B,
            "same": plain["losses"] == inside["losses"] and plain["left"] == inside["left"],
            "stats": inside["stats"],
            "time": sum(inside["seconds_s"]) / sum(plain["seconds_s"]),
            "drift": [drift(inside["seconds_s"]), drift(plain["seconds_s"])],
            "growth_MB": [growth_MB(inside, 0.25), growth_MB(plain, 0.25)],
        }
    ]


def broken(rows: list[Row]) -> list[str]:
    """Every soak whose bits differ, or whose bytes passed the budget."""
    return [
        f"soak: {r['network']}: bits {'equal' if r['same'] else 'different'}, {r['stats']['peak_B']} of {r['budget_B']} B"
        for r in rows
        if not r["same"] or r["stats"]["peak_B"] > r["budget_B"]
    ]


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    note = (
        f"`{POLICY}` at {SHARE:.0%} of the loop's peak, another shape from batch to batch, an evaluation every 50 steps. Bits: the loss of every "
        "step and of every evaluation, and everything else every 25 steps. Plain and inside ran one after the other, on a machine "
        "that does other work as well."
    )
    return [table("Soak", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[object]:
    stats = row["stats"]
    return [
        row["network"],
        row["steps"],
        format_B(row["budget_B"]),
        format_B(stats["peak_B"]),
        "equal" if row["same"] else "DIFFERENT",
        stats["departures"],
        stats["evictions"],
        stats["reruns"],
        f"{row['time']:.2f}",
        f"{row['drift'][0]:.3f} ({row['drift'][1]:.3f})",
        f"{row['growth_MB'][0]:+.1f} ({row['growth_MB'][1]:+.1f})",
    ]


SOAK_PART = Part("soak", KEYS, _measure, _tables)
