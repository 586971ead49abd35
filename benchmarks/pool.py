"""`python -m benchmarks.pool [--only PART ...] [--keys TEXT ...] [--quick] [--limit S] [--resume]`

One pool over the device's memory and the host's: how low steps come, how deep and how wide networks can be, and what
choosing together brings, planned, checked and simulated, and then carried out. Rows that a run leaves out stay as an earlier one
measured them. It fails if a row is missing; the files are written after each key.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.implementation_parts import Effort, Part, Row, say
from benchmarks.pool_depth import DEPTH_PART
from benchmarks.pool_floor import FLOOR_PART
from benchmarks.pool_joint import JOINT_PART
from benchmarks.pool_links import LINK_PART, SIZE_PART
from benchmarks.pool_whole_steps import STEPS_PART
from benchmarks.pool_width import WIDTH_PART
from benchmarks.results_file import MissingRow, read_numbers, write

PARTS = {part.name: part for part in (FLOOR_PART, DEPTH_PART, WIDTH_PART, JOINT_PART, STEPS_PART, SIZE_PART, LINK_PART)}
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
    write(file, "One pool over every memory", [*note, *tables], found)


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a key has no rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--keys", nargs="*", metavar="TEXT", help="only keys that contain one of these")
    parser.add_argument("--quick", action="store_true", help="one small key of each part, for trying the benchmark")
    parser.add_argument("--limit", type=float, default=Effort.limit_s, help="seconds of planning per budget")
    parser.add_argument("--resume", action="store_true", help="leave out keys that have rows")
    options = parser.parse_args(arguments)
    file = "pool_quick" if options.quick else "pool"
    effort = Effort(options.limit, quick=options.quick)
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
    for text in absent:
        say(f"NOT MEASURED: {text}")
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main())
