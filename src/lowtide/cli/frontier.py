"""`lowtide frontier MODULE:FUNCTION`: least time at every budget. `lowtide frontier FILE`: the same without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.cli.failure import INTERRUPTED, told
from lowtide.cli.implementations import Compiler, Level, Without, named_compiler
from lowtide.cli.movement import HostBudget, Link
from lowtide.cli.progress import line
from lowtide.ir.compilers import EAGER
from lowtide.ir.graph_file import is_graph_file
from lowtide.ir.numerics import parse_numerics
from lowtide.report.terminal import Terminal
from lowtide.session.options import offload_options
from lowtide.units import format_B

_STDOUT = "-"


def frontier(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|FILE",
            help="Importable from here, or path/to/file.py:FUNCTION; returns (model, args[, kwargs[, optimizer]]). "
            "Or a graph that was saved (.json, .json.gz), or an execution trace (.jsonl, .jsonl.gz).",
        ),
    ],
    machine: Annotated[
        str | None, typer.Option(help="Predict for this machine, by name (h200) or file, instead of measuring here.")
    ] = None,
    points: Annotated[int | None, typer.Option(min=2, help="How many budgets to plan for.")] = None,
    json: Annotated[str | None, typer.Option(metavar="PATH", help="Save the frontier here; - prints it.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report that opens in a browser.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the frontier here.")] = None,
    host_budget: HostBudget = None,
    link: Link = None,
    numerics: Level = "exact",
    without: Without = None,
    compiler: Compiler = "eager",
    baselines: Annotated[bool, typer.Option(help="Whether to ask the quick classical methods, too.")] = True,
    work: Annotated[int | None, typer.Option(min=1, help="Effort at each budget: roughly that many changes.")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Stop after that many seconds altogether.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and work give the same frontier.")] = 0,
) -> None:
    """Find the least time of a training step at every budget, from keeping everything down to the proved floor."""
    with told():
        if machine is not None and host_budget is None and is_graph_file(target):
            raise typer.BadParameter(
                f"--machine: of no effect, {target} says what operators cost; give MODULE:FUNCTION"
            )
        parse_numerics(numerics)
        offload_options(host_budget, link)
        given: dict[str, Any] = {"points": points, "machine": machine, "work": work, "time_limit_s": time_limit}
        given |= {"numerics": numerics, "without": without, "host_budget": host_budget, "link": link}
        if named_compiler(compiler) != EAGER:
            if is_graph_file(target):
                raise typer.BadParameter(f"--compiler: of no effect, {target} says what runs; give MODULE:FUNCTION")
            given["compiler"] = compiler
        found = _trace(target, baselines=baselines, seed=seed, **{k: v for k, v in given.items() if v is not None})
        _show(found, json)
        console = Terminal(stderr=json == _STDOUT)
        for path, write in ((svg, found.to_svg), (html, found.to_html)):
            if path is not None:
                write(path)
                console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if found.record.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _show(found: Any, json: str | None) -> None:
    """Prints the tables, or the JSON in their place; saves it where it is loaded."""
    from lowtide.report.frontier import explain_frontier

    if json == _STDOUT:
        typer.echo(found.to_json())
        return
    console = Terminal()
    console.print(explain_frontier(found.record))
    if json is not None:
        found.save(json)
        console.print(f"saved {json}", markup=False, highlight=False, soft_wrap=True)


def _trace(target: str, **options: Any) -> Any:
    """Imports torch, the user's function and the pipeline, in that order; for a file, none of them."""
    import lowtide

    console = Terminal(stderr=True)
    if is_graph_file(target):
        with console.status("reading") as status:
            return lowtide.frontier_file(target, watch=lambda pace: status.update(_line(pace)), **options)
    from lowtide.cli.target import load_target

    with console.status("calling your function"):
        loaded = load_target(target)
    with console.status("capturing and measuring") as status:
        return lowtide.frontier(
            loaded.model,
            args=loaded.args,
            kwargs=loaded.kwargs,
            optimizer=loaded.optimizer,
            watch=lambda pace: status.update(_line(pace)),
            **options,
        )


def _line(pace: Any) -> str:
    """Which budget, and how far its planning is."""
    if pace.method:
        return f"asking {pace.method}"
    where = f"budget {pace.number} of {pace.points}, {format_B(pace.budget_B)}"
    return where if pace.planning is None else f"{where}: {line(pace.planning)}"
