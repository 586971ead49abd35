"""Plans of the portfolio and of classical methods, executed in the arena: predicted and measured overhead and peak.

`python -m benchmarks.executed.executed [--only NAME ...] [--alphas 0.5 0.25]` writes `results/executed.md` and `.json`;
networks that a run leaves out keep the rows of an earlier one. It fails if a row is missing, or if bits differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.executed.executed_networks import NETWORKS
from benchmarks.results_file import MissingRow, read_numbers, table, write
from benchmarks.runner import answer_of

COLUMNS = {
    "network": "network", "alpha": "alpha", "budget": "budget, MB", "share": "of keep-all", "planner": "planner",
    "overhead": "predicted overhead", "measured": "measured overhead", "spread": "spread over rounds",
    "predicted": "predicted reserved, MB", "observed": "observed reserved, MB", "error": "error", "departures": "departures and spills",
    "bits": "result",
}  # fmt: skip
NOTE = (
    "Every plan runs in lowtide's own arena, at planned addresses, in generated code; only the planner differs. Overhead: over the "
    "plan that keeps everything; predicted from operators measured before the first step, measured as the median of interleaved "
    "forward-and-backward steps, both warm and in one arena. Spread: least and most over rounds; of the row keep-all, the same plan "
    "against itself. Reserved: parameters, batch and reserve included, holes too; its error is over what a plan can "
    "change. Result: one step from the same state and seed, `torch.equal` with eager in loss, gradients, buffers and generator. "
    "Alpha: of the way from the proved floor to keep-all; beside the budgets asked for, the least for which each of the two classical "
    "methods that need the fewest bytes has a plan."
)
Row = dict[str, Any]


def run(name: str, rounds: int, alphas: list[float]) -> list[Row]:
    """One network in a process of its own; its progress goes to stderr.

    Raises:
        RuntimeError: if it failed.
        MissingRow: if it left a baseline out.
    """
    rows: list[Row] = answer_of("_executed_run", name, rounds, json.dumps(alphas), quiet=False)
    if len({row["planner"] for row in rows}) < 1 + 3:  # keep-all, ours and two baselines
        raise MissingRow(f"{name}: {rows}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the table; 1 if lowtide's bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--alphas", nargs="*", type=float, default=[0.5, 0.25])
    parser.add_argument("--try", dest="trial", action="store_true", help="write executed_quick and merge nothing")
    options = parser.parse_args(arguments)
    file = "executed_quick" if options.trial else "executed"
    found: dict[str, list[Row]] = {} if options.trial else dict(read_numbers(file))
    begin = time.perf_counter()
    for name in options.only:
        found[name] = run(name, options.rounds, options.alphas)
        sys.stderr.write(f"{name}: {time.perf_counter() - begin:.0f} s in all\n")
        rows = [[row.get(key, "-") for key in COLUMNS] for n in NETWORKS for row in found.get(n, [])]
        expected = sum(len(found[n]) for n in NETWORKS if n in found)
        tables = [table("Predicted and executed", list(COLUMNS.values()), rows, expected, NOTE)]
        path = write(file, "Plans executed in the arena", tables, found)
    sys.stdout.write(path.read_text())
    wrong = [row for rows in found.values() for row in rows if row["bits"] not in ("equal", "-")]
    sys.stderr.writelines(f"BROKEN: {row['network']}, {row['planner']}: {row['bits']}\n" for row in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
