"""From an empty cache and from a full one: seconds until the first training step is done, in processes of their own.

`python -m benchmarks.executed.start_up [--only NAME ...]` writes `results/start_up.md` and `.json`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

from benchmarks.executed.first_step import first_step
from benchmarks.networks import SUBJECTS
from benchmarks.results_file import fresh_profiles, table, write
from benchmarks.runner import answer_of

RESULTS = "start_up"
BUDGET = "80% of plain"
PROCESSES = ("first", "second")
COLUMNS = {
    "import": "import_s", "capture": "capture_s", "profile": "profile_s", "plan": "plan_s",
    "plan lookup to first operator": "to_first_operator_s", "first step": "first_step_s", "later step": "later_step_s",
}  # fmt: skip


def run(name: str, budget: str) -> dict[str, float]:
    """One process."""
    found: dict[str, float] = answer_of(first_step, name, budget)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS), choices=SUBJECTS)
    options = parser.parse_args(arguments)
    fresh_profiles()
    rows: list[list[object]] = []
    numbers: dict[str, Any] = {}
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
            os.environ["LOWTIDE_CACHE_DIR"] = folder
            for process in PROCESSES:
                seen = numbers[f"{name}, {process} process"] = run(name, BUDGET)
                rows.append([name, process, *(f"{seen[key]:.2f}" for key in COLUMNS.values())])
                print(rows[-1], flush=True)
    tables = [
        table(
            "Start-up", ["network", "process", *(f"{title} s" for title in COLUMNS)], rows,
            len(options.only) * len(PROCESSES),
            f"Budget {BUDGET}, AdamW. `first step` is from the call to the end of the optimizer's step, with capture, profile "
            "and plan; the first process finds empty caches, the second one what the first left. The arena was compiled before.",
        )
    ]  # fmt: skip
    path = write(RESULTS, "Start-up: how long until training runs", tables, numbers)
    print(path.read_text())
    slow = [row for row in rows if row[1] == "second" and float(str(row[6])) > 2.0]
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
