"""Benchmarks of several parts: rows to measure under keys, how people read them, and the run that writes one file of tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results_file import MissingRow, read_numbers, write

Row = dict[str, Any]
Found = Mapping[str, list[Row]]


@dataclass(frozen=True)
class Effort:
    """How much to spend.

    Arguments:
        limit_s: of planning, per budget.
        rounds: of interleaved timing.
        quick: the least that still runs everything, for trying the benchmark.
    """

    limit_s: float = 60.0
    rounds: int = 9
    quick: bool = False


@dataclass(frozen=True)
class Part:
    """One part.

    Arguments:
        keys: what is measured at a time, and kept where a later run leaves it out.
        measure: the rows of a key.
        tables: Markdown of the rows that there are, keys in order.
    """

    name: str
    keys: tuple[str, ...]
    measure: Callable[[str, Effort], list[Row]]
    tables: Callable[[Found], list[str]]


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def percent(fraction: float | None, missing: str = "no plan") -> str:
    """A share of the step, with its sign where it is negative and not nothing."""
    return missing if fraction is None else f"{round(fraction * 100, 2) + 0.0:.2f} %"


def gib(size_B: float | None, missing: str = "none") -> str:
    """Bytes as GiB."""
    return missing if size_B is None else f"{size_B / 2**30:.2f}"


def rows_of(found: Found, keys: Sequence[str]) -> list[Row]:
    """All rows of some keys, in their order."""
    return [row for key in keys for row in found.get(key, [])]


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


@dataclass(frozen=True)
class PartsRun:
    """A benchmark of several parts.

    Arguments:
        name: of its files in `results/`.
        heading: of the page.
        about: for `--help`.
        broken: what is wrong with rows that there are, a text each.
        why_absent: said where some key has no rows.
    """

    name: str
    heading: str
    about: str
    parts: tuple[Part, ...]
    broken: Callable[[Rows], Sequence[str]] = lambda _: ()
    why_absent: str = ""

    @property
    def by_name(self) -> dict[str, Part]:
        """Its parts."""
        return {part.name: part for part in self.parts}

    def missing(self, found: Rows) -> list[str]:
        """Every key without rows."""
        return [
            f"{part.name}: {key}" for part in self.parts for key in part.keys if key not in found.get(part.name, {})
        ]

    def save(self, file: str, found: Rows) -> None:
        """Replaces both files by what there is now."""
        tables = [table for part in self.parts for table in part.tables(found.get(part.name, {}))]
        absent = self.missing(found)
        note = [f"Not measured: {'; '.join(absent)}. {self.why_absent}".rstrip() + "\n"] if absent else []
        write(file, self.heading, [*note, *tables], found)

    def main(self, arguments: list[str] | None = None) -> int:
        """Measures and writes; 1 if a key has no rows, or something is wrong with those."""
        parser = argparse.ArgumentParser(description=self.about)
        names = list(self.by_name)
        parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="PART")
        parser.add_argument("--keys", nargs="*", metavar="TEXT", help="only keys that contain one of these")
        parser.add_argument("--quick", action="store_true", help="one small key of each part, for trying the benchmark")
        parser.add_argument("--limit", type=float, default=Effort.limit_s, help="seconds of planning per budget")
        parser.add_argument("--rounds", type=int, default=Effort.rounds, help="of interleaved timing")
        parser.add_argument("--resume", action="store_true", help="leave out keys that have rows")
        options = parser.parse_args(arguments)
        file = f"{self.name}_quick" if options.quick else self.name
        effort = Effort(options.limit, options.rounds, options.quick)
        found: Rows = {name: dict(rows) for name, rows in read_numbers(file).items()}
        for name in options.only:
            part = self.by_name[name]
            for key in wanted(part, options.keys, quick=options.quick):
                rows = found.setdefault(name, {})
                if options.resume and key in rows:
                    continue
                rows[key] = measured(part, key, effort)
                self.save(file, found)
        absent = [] if options.quick else self.missing(found)
        texts = [*(f"NOT MEASURED: {key}" for key in absent), *self.broken(found)]
        for text in texts:
            say(text)
        return int(bool(texts))
