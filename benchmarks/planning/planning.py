"""`python -m benchmarks.planning.planning [--only NAME ...] [--quick] [--limit S] [--resume]`: how good plans are, and how soon.

Every problem of `benchmarks.problem_set` at every budget, each planned from nothing by the default portfolio; every
plan is checked by `lowtide.ir.check` and scored by `lowtide.ir.simulate`. The files are written after each problem.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.planning.rows import Row, climb, ladder
from benchmarks.planning.tables import tables
from benchmarks.problem_set import load, names
from benchmarks.results_file import MissingRow, read_numbers, write

RESULTS = "planning"
LIMIT_s = 60.0
QUICK = ("unet", "resnet50")


def note_of(limits_s: Sequence[float], missing: Sequence[str]) -> str:
    """What the tables mean."""
    limits = ", ".join(f"{s:g} s" for s in sorted(set(limits_s)))
    lines = [
        "Overheads are over the time of keeping everything (plain); a bound is the strongest that was proved for this or "
        "a larger budget of the same graph, for any recomputation with first runs in program order. Gap: "
        "(1 + overhead) / (1 + bound overhead) - 1. Alpha: the way from the proved floor to keep-all. Each budget is "
        f"planned from nothing, default work, limit {limits}. To 0.5 %: seconds until the plan was within that of its bound; "
        "in medians, never counts as longer than any.",
    ]
    if missing:
        lines.append(f"\nNot measured, since each of their budgets takes minutes: {', '.join(missing)}.")
    return "\n".join([*lines, ""])


def measure(name: str, quick: bool, limit_s: float) -> list[Row]:
    """The rows of one problem.

    Raises:
        MissingRow: if a budget has none.
    """
    rungs = ladder(name, load(name), quick)
    rows = list(climb(rungs, limit_s, _say))
    if [row.label for row in rows] != [label for label, _ in rungs.budgets]:
        raise MissingRow(f"{name}: rows for {[row.label for row in rows]} of {[label for label, _ in rungs.budgets]}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a problem that there is has no rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=names(), metavar="NAME", help="replace these problems' rows")
    parser.add_argument("--quick", action="store_true", help="two problems and two budgets, for trying the benchmark")
    parser.add_argument("--limit", type=float, default=LIMIT_s, help="seconds of planning per budget")
    parser.add_argument("--resume", action="store_true", help="leave out problems that have rows")
    options = parser.parse_args(arguments)
    file = f"{RESULTS}_quick" if options.quick else RESULTS
    there = list(QUICK) if options.quick else names()
    found: dict[str, list[Row]] = {
        name: [Row(**row) for row in rows["rows"]] for name, rows in read_numbers(file).items()
    }
    limits_s = {name: rows["limit_s"] for name, rows in read_numbers(file).items()}
    wanted = options.only if options.only is not None else there
    for name in wanted:
        if options.resume and name in found:
            continue
        found[name] = measure(name, options.quick, options.limit)
        limits_s[name] = options.limit
        _write(file, found, limits_s, [n for n in there if n not in found])
    missing = [n for n in there if n not in found]
    if missing:
        _say(f"NOT MEASURED: {', '.join(missing)}")
    return int(bool(missing))


def _write(file: str, found: dict[str, list[Row]], limits_s: dict[str, float], missing: list[str]) -> None:
    """Replaces both files by what there is now, the smallest problems first."""
    order = sorted(found, key=lambda name: (found[name][0].operators, name))
    rows = [row for name in order for row in found[name]]
    numbers = {name: {"limit_s": limits_s[name], "rows": [r.as_data() for r in found[name]]} for name in order}
    note = note_of([limits_s[name] for name in order], missing)
    write(file, "Planning", [note, *tables(rows)], numbers)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
