"""What a part of the tables of implementations is: rows to measure under keys, and how people read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
