"""Policies executed side by side in one arena with one in-place rule: recomputation, search, fragmentation, seconds."""

from __future__ import annotations

import json

from benchmarks.eager_networks import NETWORKS
from benchmarks.eager_running import POLICIES
from benchmarks.implementation_parts import Effort, Found, Part, Row, rows_of
from benchmarks.own_process import answer_of
from benchmarks.results_file import table
from lowtide.units import format_B

KEYS = tuple(NETWORKS)
SHARES = (0.8, 0.65, 0.5, 0.4, 0.3)
HALF = 0.5
STEPS = 8
WARM = 2
TARGET = 0.8
"""Of Coop's recomputation, with the memory of the last step, at half of the peak."""
_DETAILS = (
    "network", "policy", "recomputed", "over Coop's", "fragmentation", "search per allocation", "searches per step",
    "search, of the step", "evictions per step", "moved per step", "step",
)  # fmt: skip


def _measure(name: str, effort: Effort) -> list[Row]:
    peak_B = answer_of("_eager_run", "peak", name)
    shares = (HALF,) if effort.quick else SHARES
    rows: list[Row] = []
    for policy in POLICIES:
        rows += answer_of("_eager_run", "executed", name, policy, peak_B, json.dumps(shares), STEPS)
    return [row | {"loop_B": peak_B} for row in rows]


def _of(rows: list[Row], network: str, policy: str, share: float) -> Row | None:
    return next((r for r in rows if (r["network"], r["policy"], r["share"]) == (network, policy, share)), None)


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    names = [key for key in KEYS if found.get(key)]
    if not rows:
        return []
    overheads = [
        [name, format_B(found[name][0]["loop_B"]), policy, *(_recomputed(_of(rows, name, policy, s)) for s in SHARES)]
        for name in names
        for policy in POLICIES
    ]
    note = (
        f"Modelled cost of reruns over that of first runs, steps {WARM + 1} to {STEPS}: deterministic. Shares of the most that the loop "
        "holds without a limit, weights, gradients and optimizer state included. All policies in the same arena, with the same "
        "in-place rule and the same homes; blocks slide only where the policy says so."
    )
    half = [r for name in names for p in POLICIES if (r := _of(rows, name, p, HALF)) is not None]
    return [
        table("Recomputation, executed", ("network", "peak", "policy", *(f"{s:.0%}" for s in SHARES)), overheads, len(overheads), note),
        table(
            "At half of the peak", _DETAILS, [_cells(r, rows) for r in half], len(half),
            f"Target: with the memory of the last step at most {TARGET} of Coop's recomputation. Search: seconds of the policy from a "
            "request that found no place to the one that did, reruns not among them. One thread, on a machine that does other work "
            "as well: seconds are what they are, counts are deterministic.",
        ),
    ]  # fmt: skip


def _recomputed(row: Row | None) -> str:
    if row is None:
        return "-"
    return "no room" if row["refused"] else f"{row['recomputed']:.1%}"


def _cells(row: Row, rows: list[Row]) -> list[object]:
    if row["refused"]:
        return [row["network"], row["policy"], "no room", *["-"] * (len(_DETAILS) - 3)]
    coop = _of(rows, row["network"], "coop", HALF)
    against = "-"
    if coop is not None and not coop["refused"] and coop["recomputed"]:
        against = f"{row['recomputed'] / coop['recomputed']:.2f}"
    return [
        row["network"],
        row["policy"],
        f"{row['recomputed']:.1%}",
        against,
        f"{row['fragmentation']:.1%}",
        f"{row['search_s'] * 1e6 / max(row['searches'], 1):.1f} us",
        f"{row['searches']:.0f}",
        f"{row['search_s'] / row['step_s']:.1%}",
        f"{row['evictions']:.0f}",
        format_B(int(row["moved_B"])),
        f"{row['step_s'] * 1e3:.0f} ms",
    ]


EXECUTED_PART = Part("executed", KEYS, _measure, _tables)
