"""`lowtide plan MODULE:FUNCTION --budget ...`: look before you run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lowtide.cli.failure import INTERRUPTED, told
from lowtide.units import parse_budget


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Importable from here, or path/to/file.py:FUNCTION; returns (model, args) or (model, args, kwargs).",
        ),
    ],
    budget: Annotated[str, typer.Option(help='Bytes, "6GiB", "60%" of the device, or "60% of plain".')],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the plan here, as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report that opens in a browser.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="Predict for this machine, by name (h200) or file, instead of measuring here.")
    ] = None,
    work: Annotated[int | None, typer.Option(min=1, help="Effort: roughly that many proposed changes.")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Stop searching after that many seconds.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and work give the same plan.")] = 0,
    top: Annotated[int, typer.Option(min=0, help="Values to explain.")] = 10,
) -> None:
    """Plan a training step inside a budget, without taking one."""
    with told():
        parse_budget(budget)  # a typing error should not cost the import of torch
        found = _plan(target, budget=budget, machine=machine, work=work, time_limit_s=time_limit, seed=seed)
        interrupted = _show(found.record, top)
        console = Console()
        if output is not None:
            found.save(output)
            console.print(f"saved {output}", markup=False, highlight=False, soft_wrap=True)
        if html is not None:
            found.to_html(html)
            console.print(f"wrote {html}", markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _plan(target: str, **options: Any) -> Any:
    """Imports torch, the user's function and the pipeline, in that order, and plans."""
    import lowtide
    from lowtide.cli.target import load_target

    console = Console(stderr=True)
    with console.status("calling your function"):
        wanted = load_target(target)
    given = {name: option for name, option in options.items() if option is not None}
    with console.status("capturing and measuring") as status:

        def watch(progress: Any) -> None:
            status.update(f"planning: {progress.stage}, {progress.elapsed_s:.1f} s")

        return lowtide.plan(wanted.model, args=wanted.args, kwargs=wanted.kwargs, watch=watch, **given)


def _show(record: Any, top: int) -> bool:
    """Prints the explanation; returns whether planning was interrupted."""
    from lowtide.ir.plan import Status
    from lowtide.report.explain import explain, renderable

    Console().print(renderable(explain(record, top)))
    return bool(record.outcome.status is Status.INTERRUPTED)
