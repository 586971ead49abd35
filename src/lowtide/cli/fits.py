"""`lowtide fits MODULE:FUNCTION --device h100`: will it fit on that card? Needs no card."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from lowtide.cli.failure import REFUSED, told
from lowtide.cli.implementations import Level, Without
from lowtide.report.terminal import Terminal


def fits(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Importable from here, or path/to/file.py:FUNCTION; returns (model, args[, kwargs[, optimizer]]).",
        ),
    ],
    device: Annotated[
        str, typer.Option(help='A machine by name (h100, "RTX 4090") or file, bytes ("24GiB"), cpu or cuda.')
    ],
    reserve: Annotated[str | None, typer.Option(help="Bytes of the device that are left to what is no tensor.")] = None,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="NAME:DIM", help="What the batch is, if not the first dimension.")
    ] = None,
    numerics: Level = "exact",
    without: Without = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Say whether a training step fits on a device: as it is, with lowtide, or not. Exits with 2 if it does not."""
    with told():
        answer = _ask(target, device, reserve, vary or [], numerics, without or [])
        if as_json:
            typer.echo(json.dumps(_facts(answer), indent=2))
        else:
            Terminal().print(str(answer), markup=False, highlight=False, soft_wrap=True)
    if not answer:
        raise typer.Exit(REFUSED)


def _ask(target: str, device: str, reserve: str | None, vary: list[str], numerics: str, without: list[str]) -> Any:
    import lowtide
    from lowtide.cli.target import load_target

    console = Terminal(stderr=True)
    with console.status("calling your function"):
        loaded = load_target(target)
    with console.status("capturing and planning"):
        return lowtide.fits(
            loaded.model,
            loaded.args,
            loaded.kwargs,
            device=device,
            optimizer=loaded.optimizer,
            reserve=reserve,
            vary_only=vary,
            numerics=numerics,
            without=without,
        )


def _facts(answer: Any) -> dict[str, Any]:
    names = ("fits", "verdict", "device", "memory_B", "reserve_B", "plain_B", "floor_B", "smallest_B", "overhead")
    return {name: getattr(answer, name) for name in (*names, "largest_batch", "outside", "note")}
