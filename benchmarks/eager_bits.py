"""Ten steps inside budgets, bit by bit beside plain eager."""

from __future__ import annotations

import json

from benchmarks.eager_networks import NETWORKS
from benchmarks.eager_running import POLICIES
from benchmarks.implementation_parts import Effort, Found, Part, Row, rows_of
from benchmarks.own_process import answer_of
from benchmarks.results_file import table
from lowtide.units import format_B

KEYS = tuple(NETWORKS)
SHARES = (0.7, 0.5, 0.35)
STEPS = 10
RUNTIME = "auto"
_COLUMNS = (
    "network",
    "policy",
    "of the peak",
    "budget",
    "most held",
    "bits",
    "evictions",
    "reruns",
    "retries",
    "departures",
)


def _measure(name: str, effort: Effort) -> list[Row]:
    peak_B = answer_of("_eager_run", "peak", name)
    shares = SHARES[:1] if effort.quick else SHARES
    rows: list[Row] = []
    for policy in POLICIES[-1:] if effort.quick else POLICIES:
        rows += answer_of("_eager_run", "bits", name, policy, peak_B, json.dumps(shares), STEPS, RUNTIME)
    return rows


def broken(rows: list[Row]) -> list[str]:
    """Every row whose bits differ or whose bytes passed the wall."""
    return [
        f"bits: {r['network']} {r['policy']} {r['share']}: {r['different']} differences, {r['peak_B']} of {r['budget_B']} B"
        for r in rows
        if not r["refused"] and (r["different"] or r["peak_B"] > r["budget_B"])
    ]


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    compared = sum(r.get("compared", 0) for r in rows)
    note = (
        f"{STEPS} steps with the optimizer inside; after each one loss, gradients, parameters, buffers, the optimizer's state and "
        f"torch's generator are compared byte by byte with plain eager's, and once more after the context: {compared:,} "
        "comparisons. Shares are of the most that the loop holds without a limit, weights and optimizer state included. No room: "
        "the run was refused."
    )
    return [table("The same bits", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[object]:
    head = [row["network"], row["policy"], f"{row['share']:.0%}", format_B(row["budget_B"])]
    if row["refused"]:
        return [*head, "no room", *["-"] * 5]
    bits = "equal" if not row["different"] else f"{row['different']} DIFFERENT"
    return [*head, format_B(row["peak_B"]), bits, row["evictions"], row["reruns"], row["retries"], row["departures"]]


BITS_PART = Part("bits", KEYS, _measure, _tables)
