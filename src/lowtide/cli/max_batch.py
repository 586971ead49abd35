"""`lowtide plan --max-batch`: the search of `lowtide.max_batch` over a target's inputs, and its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.table import Table

from lowtide.report.terminal import Terminal
from lowtide.units import format_B, format_s


@dataclass(frozen=True)
class Variation:
    """What of a target's inputs is its batch, and how to look for the largest.

    Arguments:
        dim: the dimension that varies, of every tensor argument; `only` names others, `NAME:DIM` each.
        multiple_of, overhead_limit, verify: as for `lowtide.max_batch`.
    """

    dim: int = 0
    only: tuple[str, ...] = ()
    multiple_of: int = 1
    overhead_limit: float | None = None
    verify: bool = True


def find(loaded: Any, variation: Variation, watch: Any, options: dict[str, Any]) -> Any:
    """Looks for the largest batch of a target.

    Arguments:
        loaded: the target.
        options: budget, machine, seed, work; those that were given.
    """
    import lowtide
    from lowtide.session.inputs import vary

    make = vary(loaded.model, (loaded.args, loaded.kwargs), dim=variation.dim, only=variation.only)
    return lowtide.max_batch(
        make,
        loaded.model,
        optimizer=loaded.optimizer,
        multiple_of=variation.multiple_of,
        overhead_limit=variation.overhead_limit,
        verify=variation.verify,
        watch=watch,
        **options,
    )


def show(found: Any) -> None:
    """Prints what was tried, and the answer."""
    table = Table("size", "fits", "needs", "took", "how", box=None, pad_edge=False)
    for tried in found.tried:
        how = f"{tried.how}; {tried.note}" if tried.note else tried.how
        needs = format_B(tried.needed_B) if tried.needed_B else ""
        table.add_row(str(tried.size), "yes" if tried.fits else "no", needs, format_s(tried.seconds_s), how)
    console = Terminal()
    console.print(table)
    console.print(f"{found!r}", markup=False, highlight=False, soft_wrap=True)
    if found.note:
        console.print(found.note, markup=False, highlight=False, soft_wrap=True)


def as_json(found: Any) -> str:
    """The answer for programs; bytes and seconds by their names."""
    facts = {
        "size": found.size,
        "plain_size": found.plain_size,
        "verified": found.verified,
        "budget_B": found.plan.budget_B,
        "budget_kind": found.plan.budget_kind,
        "reserved_B": found.plan.reserved_B,
        "overhead": found.plan.overhead,
        "seconds_s": found.seconds_s,
        "note": found.note,
        "tried": [msgspec.structs.asdict(t) for t in found.tried],
    }
    return json.dumps(facts, indent=2)
