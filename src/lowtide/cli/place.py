"""`lowtide place FILE.csv --capacity N`: offsets for buffers whose lifetimes are known. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.cli.failure import told
from lowtide.report.terminal import Terminal

if TYPE_CHECKING:
    from lowtide.ir.packing import Packed, Packing

_WORK_FOR_A_CAPACITY = 60_000_000  # somebody waits for a yes: about a minute


def place(
    file: Annotated[
        Path, typer.Argument(help="Buffers as CSV: id, lower, upper (ticks, half open), size; optionally offset.")
    ],
    capacity: Annotated[str | None, typer.Option(help='A height that is low enough: bytes, or "512MiB".')] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the rows with their offsets here.")
    ] = None,
    alignment: Annotated[int | None, typer.Option(min=1, help="Of every offset, in bytes; 1 if not given.")] = None,
    work: Annotated[int | None, typer.Option(min=0, help="Effort, in about a microsecond each.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed and work give the same offsets.")] = 0,
) -> None:
    """Give buffers with known lifetimes and sizes offsets, as low as possible or within a capacity."""
    with told():
        from lowtide.ir.check_packing import check_packing
        from lowtide.ir.packing_csv import read_table, write_table
        from lowtide.placers.portfolio import place as place_packing

        table = read_table(file, alignment_B=alignment, capacity_B=_capacity_B(capacity))
        packing = table.packing
        if work is None and capacity is not None:
            work = _WORK_FOR_A_CAPACITY
        with Terminal(stderr=True).status("placing"):
            packed = place_packing(packing, seed=seed, work=work)
        check_packing(packing, packed)
        _refuse_excess(packing, packed)
        console = Terminal()
        console.print(_summary(packing, packed), markup=False, highlight=False, soft_wrap=True)
        if output is not None:
            write_table(output, table, packed)
            console.print(f"wrote {output}", markup=False, highlight=False, soft_wrap=True)


def _capacity_B(text: str | None) -> int | None:
    """Reads the capacity.

    Raises:
        BudgetError: if it is malformed.
        PackingError: if it is a share of something.
    """
    from lowtide.errors import PackingError
    from lowtide.units import parse_budget

    if text is None:
        return None
    size_B = parse_budget(text).size_B
    if size_B is None:
        raise PackingError(f'the capacity {text!r} is a share of nothing: write bytes, or "512MiB"')
    return size_B


def _refuse_excess(packing: Packing, packed: Packed) -> None:
    """Says why the capacity is not met, if it is not.

    Raises:
        PackingError: then.
    """
    from lowtide.errors import PackingError
    from lowtide.placers.bound import live_B

    capacity_B = packing.capacity_B
    if capacity_B is None or packed.height_B <= capacity_B:
        return
    if packed.bound_B > capacity_B:
        tick, most_B = max(live_B(packing), key=lambda step: step[1])
        why = f"{most_B:,} B are live at tick {tick}" if most_B > capacity_B else "the search tried every placement"
        raise PackingError(
            f"nothing fits {capacity_B:,} B: {why}. Ask for at least {packed.bound_B:,} B; "
            f"the best placement found takes {packed.height_B:,} B."
        )
    raise PackingError(
        f"found nothing within {capacity_B:,} B; the best placement takes {packed.height_B:,} B, and none takes less "
        f"than {packed.bound_B:,} B. Give it more --work than {packed.stats['work']:,}, another --seed, or more bytes."
    )


def _summary(packing: Packing, packed: Packed) -> str:
    from lowtide.units import format_s

    proof = "proved lowest" if packed.optimal else f"proved bound {packed.bound_B:,} B"
    limit = "" if packing.capacity_B is None else f" of {packing.capacity_B:,} B"
    return (
        f"placed {len(packing.buffers):,} buffers in {packed.height_B:,}{limit or ' B'} "
        f"in {format_s(packed.seconds_s)} ({packed.stats['winner']}; {proof})"
    )
