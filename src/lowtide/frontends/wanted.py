"""Which implementations a person wants, as read from what was written."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from lowtide.ir.numerics import Numerics, parse_numerics
from lowtide.ops.catalogue import parse_without


class Wanted(TypedDict):
    """Two of the fields of `PlanOptions`."""

    numerics: Numerics
    without: frozenset[str]


def wanted(numerics: str | Numerics, without: Collection[str]) -> Wanted:
    """Reads a level, and what is to be left out.

    Raises:
        NumericsError: if there is no such level, or nothing of such a name.
    """
    return {"numerics": parse_numerics(numerics), "without": parse_without(without)}
