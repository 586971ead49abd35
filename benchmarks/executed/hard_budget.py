"""Is the budget hard? Bytes reserved, said and seen; the price in time; and what the budget does not hold.

`python -m benchmarks.executed.hard_budget [--quick] [--only NAME ...]` writes `results/wall.md` and `.json`. It fails if a row is
missing, if the bits differ from plain training, if a byte is over a budget, or if a prediction is off by more than 1 %.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from typing import Any

from benchmarks.executed import hard_budget_outside, hard_budget_time
from benchmarks.executed.hard_budget_prediction import COLUMNS, LABELS, LIMITS, STEPS, TOLERANCE, Prediction
from benchmarks.networks import FURTHER, SUBJECTS
from benchmarks.results_file import fresh_profiles, read_numbers, table, write
from lowtide.device.heap import keep_warm

RESULTS = "wall"
NETWORKS = SUBJECTS | FURTHER
QUICK_LABELS = ("keep-all", 0.25)
Rows = dict[str, list[list[object]]]


def measure(names: list[str], quick: bool) -> tuple[Rows, list[str]]:
    """Everything about some of the networks. Returns the rows of each table, and the promises that were broken."""
    rows: Rows = {k: [] for k in ("prediction", "limits", "time", "growth", "coverage", "probes")}
    broken: list[str] = []
    outside: dict[str, dict[str, Any]] = {n: {} for n in hard_budget_outside.NETWORKS if n in names}
    for name, found in outside.items():
        for scope in hard_budget_outside.SCOPES:
            _say(f"{name}: what grows outside, scope {scope}")
            found[scope] = hard_budget_outside.run(name, scope, 10 if quick else 30)
            rows["growth"].append(hard_budget_outside.growth(name, found[scope]))
    for name in names:
        _say(f"{name}: capture, profile")
        bench = Prediction(NETWORKS[name])
        rows["limits"].append(bench.limits())
        for label in QUICK_LABELS if quick else LABELS:
            _say(f"{name}: {label}")
            row, kept_not = bench.row(label)
            rows["prediction"].append(row)
            broken += kept_not
        del bench
        gc.collect()
    for name in names:
        if name in SUBJECTS:
            _say(f"{name}: step time")
            rows["time"] += hard_budget_time.measure(NETWORKS[name], 3 if quick else 11)
            gc.collect()
    if len(outside) == len(hard_budget_outside.NETWORKS):
        rows["coverage"] = hard_budget_outside.coverage({n: f["step"] for n, f in outside.items()})
    rows["probes"] = hard_budget_outside.probes()
    return rows, broken


def with_earlier(rows: Rows, measured: list[str]) -> Rows:
    """Rows of networks that this run left out, from the results of an earlier one, in the usual order."""
    earlier, order = read_numbers(RESULTS), list(NETWORKS)
    merged: Rows = {}
    for kind, fresh in rows.items():
        if kind in ("coverage", "probes"):
            merged[kind] = fresh or earlier.get(kind, [])
            continue
        merged[kind] = [*(r for r in earlier.get(kind, []) if r[0] not in measured), *fresh]
        merged[kind].sort(key=lambda row: order.index(str(row[0])))
    return merged


def tables_of(rows: Rows, labels: int) -> list[str]:
    """The tables, every promised row in them."""
    names = {row[0] for row in rows["limits"]}
    return [
        table(
            "Prediction, MB", COLUMNS, rows["prediction"], len(names) * labels,
            f"AdamW, {STEPS} steps. Budgets: floor + alpha (keep-all - floor), and the smallest that the error for a floor's "
            "budget names. Reserved: the address range ever used, parameters, buffers, inputs and optimizer state included. "
            "Error over (reserved - persistent). Bits: losses, parameters, buffers and generator after the last step, "
            "`torch.equal` to plain PyTorch. Plain: live bytes of the same training, eagerly.",
        ),
        table(
            "Limits, MB", LIMITS, rows["limits"], len(names),
            "Smallest named: by the error. Plain, best fit: the address range that plain eager takes in an arena without plans.",
        ),
        table(
            "Step time", hard_budget_time.COLUMNS, rows["time"], len(hard_budget_time.STRETCHES) * len(names & set(SUBJECTS)),
            "Budget: what keeping everything needs. Medians of interleaved rounds; A/A is plain eager in the arena against "
            f"itself; the heap of malloc is kept warm. Target: {hard_budget_time.TARGET} in the same arena.",
        ),
        *_outside(rows, [n for n in hard_budget_outside.NETWORKS if n in names]),
        table(
            "Which tensors are in the arena", hard_budget_outside.PROBES, rows["probes"], 14,
            "Measured by the arena's own count.",
        ),
    ]  # fmt: skip


def _outside(rows: Rows, names: list[str]) -> list[str]:
    """The tables of networks that were trained in processes of their own, where there are any."""
    if not names:
        return []
    note = f"{hard_budget_outside.NOTE} Target: {hard_budget_outside.TARGET_B / 1e6:.0f} MB."
    scopes = len(hard_budget_outside.SCOPES)
    found = [table("Growth outside the arena", hard_budget_outside.GROWTH, rows["growth"], scopes * len(names), note)]
    if len(names) == len(hard_budget_outside.NETWORKS):
        note = "Measured in the runs above; plain eager: its first step in an arena, per network."
        found.append(table("What is not covered, and why", hard_budget_outside.COVERAGE, rows["coverage"], 9, note))
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the tables; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few budgets, rounds and steps, for trying the benchmark")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    options = parser.parse_args(arguments)
    keep_warm(1 << 30)
    fresh_profiles()
    rows, broken = measure(options.only, options.quick)
    if len(options.only) < len(NETWORKS) and not options.quick:
        rows = with_earlier(rows, options.only)
    tables = tables_of(rows, len(QUICK_LABELS if options.quick else LABELS))
    path: Path = write(f"{RESULTS}_quick" if options.quick else RESULTS, "The wall", tables, rows)
    sys.stdout.write(path.read_text())
    sys.stderr.writelines(f"BROKEN: {promise} (tolerance {TOLERANCE:.0%})\n" for promise in broken)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
