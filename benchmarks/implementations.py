"""`python -m benchmarks.implementations [--only PART ...] [--keys TEXT ...] [--quick] [--limit S] [--resume]`

What more than one implementation per operator brings: overheads per level beside MONeT's and Checkmate's figures, the
ablation, joint choice against one after the other, seconds of planning, plans executed, large vocabularies, loss curves.
Rows that a run leaves out stay as an earlier one measured them. It fails if a row is missing, or if bits differ at level
exact; the files are written after each key.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.implementation_ablation import ABLATION_PART
from benchmarks.implementation_curves import CURVE_PART
from benchmarks.implementation_execution import EXECUTION_PART, broken
from benchmarks.implementation_levels import LEVEL_PART, TEN_PART
from benchmarks.implementation_order import ORDER_PART
from benchmarks.implementation_parts import Effort, Part, Row, say
from benchmarks.implementation_solving import SOLVING_PART
from benchmarks.implementation_vocabulary import VOCABULARY_PART
from benchmarks.results_file import MissingRow, read_numbers, write

PARTS = {
    part.name: part
    for part in (
        LEVEL_PART,
        TEN_PART,
        ABLATION_PART,
        ORDER_PART,
        SOLVING_PART,
        EXECUTION_PART,
        VOCABULARY_PART,
        CURVE_PART,
    )
}
Rows = dict[str, dict[str, list[Row]]]
"""Part -> key -> rows."""


def wanted(part: Part, words: list[str] | None, *, quick: bool) -> list[str]:
    """The keys that a run is to measure.

    Arguments:
        words: those are wanted that contain one of them; None for all.
        quick: the first of them only.
    """
    keys = [key for key in part.keys if words is None or any(word in key for word in words)]
    return keys[:1] if quick else keys


def measured(part: Part, key: str, effort: Effort) -> list[Row]:
    """The rows of a key.

    Raises:
        MissingRow: if there are none.
    """
    rows = part.measure(key, effort)
    if not rows:
        raise MissingRow(f"{part.name}, {key}: no rows")
    return rows


def missing(found: Rows) -> list[str]:
    """Every key without rows."""
    return [
        f"{part.name}: {key}" for part in PARTS.values() for key in part.keys if key not in found.get(part.name, {})
    ]


def save(file: str, found: Rows) -> None:
    """Replaces both files by what there is now."""
    tables = [table for part in PARTS.values() for table in part.tables(found.get(part.name, {}))]
    absent = missing(found)
    note = [f"Not measured: {'; '.join(absent)}.\n"] if absent else []
    write(file, "Implementations", [*note, *tables], found)


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a key has no rows or bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--keys", nargs="*", metavar="TEXT", help="only keys that contain one of these")
    parser.add_argument("--quick", action="store_true", help="one small key of each part, for trying the benchmark")
    parser.add_argument("--limit", type=float, default=Effort.limit_s, help="seconds of planning per budget")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="of interleaved timing")
    parser.add_argument("--resume", action="store_true", help="leave out keys that have rows")
    options = parser.parse_args(arguments)
    file = "implementations_quick" if options.quick else "implementations"
    effort = Effort(options.limit, options.rounds, options.quick)
    found: Rows = {name: dict(rows) for name, rows in read_numbers(file).items()}
    for name in options.only:
        part = PARTS[name]
        for key in wanted(part, options.keys, quick=options.quick):
            rows = found.setdefault(name, {})
            if options.resume and key in rows:
                continue
            rows[key] = measured(part, key, effort)
            save(file, found)
    absent = [] if options.quick else missing(found)
    wrong = broken(found.get(EXECUTION_PART.name, {}))
    for text in (*(f"NOT MEASURED: {key}" for key in absent), *(f"BROKEN: {row}" for row in wrong)):
        say(text)
    return int(bool(absent or wrong))


if __name__ == "__main__":
    sys.exit(main())
