"""`lowtide plan MODULE:FUNCTION --budget ...`: look before you run. `lowtide plan FILE`: the same without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.cli.explain import VERBOSE
from lowtide.cli.failure import INTERRUPTED, told
from lowtide.cli.implementations import Compiler, Level, Without, named_compiler
from lowtide.cli.max_batch import Variation, find, show
from lowtide.cli.max_batch import as_json as to_json
from lowtide.cli.movement import HostBudget, Link
from lowtide.cli.progress import line
from lowtide.ir.compilers import EAGER
from lowtide.ir.graph_file import is_graph_file
from lowtide.ir.numerics import parse_numerics
from lowtide.progress import shown_by
from lowtide.report.terminal import Terminal
from lowtide.session.options import offload_options
from lowtide.units import parse_budget

CAPTURING = "capturing and measuring"


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|FILE",
            help="Importable from here, or path/to/file.py:FUNCTION; returns (model, args[, kwargs[, optimizer]]). "
            "Or a graph that was saved (.json, .json.gz), or an execution trace (.jsonl, .jsonl.gz).",
        ),
    ],
    budget: Annotated[str, typer.Option(help='Bytes, "6GiB", "60%" of the device, or "60% of plain".')],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the plan here, as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report that opens in a browser.")] = None,
    save_graph: Annotated[
        Path | None, typer.Option(help="Write the profiled graph here, as JSON (.json, .json.gz), before planning it.")
    ] = None,
    repeat: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER=TIMES", help="Of a graph in a file: plan it with this layer so often. Repeatable."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="Predict for this machine, by name (h200) or file, instead of measuring here.")
    ] = None,
    host_budget: HostBudget = None,
    link: Link = None,
    numerics: Level = "exact",
    without: Without = None,
    compiler: Compiler = "eager",
    work: Annotated[int | None, typer.Option(min=1, help="Effort: roughly that many proposed changes.")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Stop searching after that many seconds.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and work give the same plan.")] = 0,
    top: Annotated[int, typer.Option(min=0, help="Values to explain.")] = 10,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=VERBOSE)] = False,
    max_batch: Annotated[
        bool, typer.Option("--max-batch", help="Find the largest batch that fits; plan that.")
    ] = False,
    batch_dim: Annotated[int, typer.Option(help="The batch is this dimension of every tensor argument.")] = 0,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="NAME:DIM", help="Instead: of this argument, this one. Repeatable.")
    ] = None,
    multiple_of: Annotated[int, typer.Option(min=1, help="Batches to consider.")] = 1,
    overhead_limit: Annotated[
        float | None, typer.Option(min=0.0, help="Accept no plan slower by more than this fraction: 0.5 is 50 %.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Whether to take a step of the batch that was found.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of --max-batch as JSON.")] = False,
) -> None:
    """Plan a training step inside a budget, without taking one."""
    variation = Variation(batch_dim, tuple(vary or ()), multiple_of, overhead_limit, verify) if max_batch else None
    with told():
        parse_budget(budget)  # a typing error should not cost the import of torch
        parse_numerics(numerics)
        moves = offload_options(host_budget, link)["host_budget_B"] > 0
        _refuse_idle_options(variation, batch_dim, vary, overhead_limit, as_json, time_limit, moves)
        _refuse_for_files(target, variation, None if moves else machine, save_graph, compiler)
        layers = _layers(target, repeat)
        options = {"budget": budget, "machine": machine, "work": work, "time_limit_s": time_limit, "seed": seed}
        menu: dict[str, Any] = {"numerics": numerics, "without": without, "host_budget": host_budget, "link": link}
        if named_compiler(compiler) != EAGER:
            menu["compiler"] = compiler
        found = _plan(target, variation, save_graph=save_graph, repeat=layers, **options, **menu)
        if variation is not None:
            typer.echo(to_json(found)) if as_json else show(found)
            found = found.plan
        interrupted = False if as_json else _show(found.record, top, verbose)
        console = Terminal(stderr=as_json)
        if output is not None:
            found.save(output)
            console.print(f"saved {output}", markup=False, highlight=False, soft_wrap=True)
        if html is not None:
            found.to_html(html)
            console.print(f"wrote {html}", markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _refuse_idle_options(
    variation: Variation | None,
    batch_dim: int,
    vary: list[str] | None,
    overhead_limit: float | None,
    as_json: bool,
    time_limit: float | None,
    moves: bool,
) -> None:
    """Refuses options that would have no effect.

    Raises:
        typer.BadParameter: then.
    """
    given = {
        "--batch-dim": batch_dim,
        "--vary": vary,
        "--overhead-limit": overhead_limit is not None,
        "--json": as_json,
    }
    idle = [name for name, used in given.items() if used]
    if variation is None and idle:
        raise typer.BadParameter(f"{', '.join(idle)}: of no effect without --max-batch")
    if variation is not None and moves:
        raise typer.BadParameter("--host-budget: --max-batch plans without the host; give one or the other")
    if variation is not None and vary and batch_dim:
        raise typer.BadParameter("--vary names each argument's dimension: leave --batch-dim out")
    if variation is not None and time_limit is not None:
        raise typer.BadParameter("--max-batch plans many sizes: bound each by --work, not by --time-limit")


def _refuse_for_files(
    target: str, variation: Variation | None, machine: str | None, save_graph: Path | None, compiler: str
) -> None:
    """Refuses what cannot be done with a file, and a graph's name that would not be read again.

    Raises:
        typer.BadParameter: then.
    """
    if save_graph is not None and not save_graph.name.endswith((".json", ".json.gz")):
        raise typer.BadParameter("--save-graph: name a file that ends in .json or .json.gz")
    if variation is not None and save_graph is not None:
        raise typer.BadParameter("--max-batch plans many graphs: --save-graph without it saves one")
    if not is_graph_file(target):
        return
    if variation is not None:
        raise typer.BadParameter(f"--max-batch: {target} holds one batch; give MODULE:FUNCTION")
    if compiler != EAGER:
        raise typer.BadParameter(f"--compiler: of no effect, {target} says what runs; give MODULE:FUNCTION")
    if machine is not None:
        raise typer.BadParameter(f"--machine: of no effect, {target} says what operators cost; give MODULE:FUNCTION")


def _layers(target: str, repeat: list[str] | None) -> dict[str, int] | None:
    """How often each layer is to come.

    Raises:
        typer.BadParameter: if that cannot be read, or the target is no file.
    """
    if not repeat:
        return None
    if not is_graph_file(target):
        raise typer.BadParameter("--repeat: of a graph in a file; write one with --save-graph FILE, and plan that")
    found: dict[str, int] = {}
    for text in repeat:
        name, _, times = text.rpartition("=")
        if not name or not times.isdigit() or int(times) < 1:
            raise typer.BadParameter(f"--repeat: write LAYER=TIMES, as in transformer.h=96, not {text!r}")
        if name in found:
            raise typer.BadParameter(f"--repeat: {name} stands there twice; name each layer once")
        found[name] = int(times)
    return found


def _plan(target: str, variation: Variation | None, **options: Any) -> Any:
    """Imports torch, the user's function and the pipeline, in that order, and plans; for a file, none of them."""
    import lowtide
    from lowtide.cli.target import load_target

    console = Terminal(stderr=True)
    given = {name: option for name, option in options.items() if option is not None}
    if is_graph_file(target):
        return _plan_file(target, console, **given)
    with console.status("calling your function"):
        loaded = load_target(target)
    with console.status(CAPTURING) as status, shown_by(lambda text: status.update(text or CAPTURING)):

        def watch(progress: Any) -> None:
            status.update(line(progress))

        if variation is not None:
            return find(loaded, variation, watch, given)
        if loaded.optimizer is not None:
            given["optimizer"] = loaded.optimizer
        return lowtide.plan(loaded.model, args=loaded.args, kwargs=loaded.kwargs, watch=watch, **given)


def _plan_file(target: str, console: Terminal, save_graph: Path | None = None, **given: Any) -> Any:
    """Reads a graph and plans it."""
    import lowtide
    from lowtide.api.depth import deepened
    from lowtide.ir.graph_file import read_graph
    from lowtide.ir.text import save_graph as write_graph

    with console.status("reading") as status:
        if save_graph is not None:
            write_graph(deepened(read_graph(target), given.get("repeat") or {}), save_graph)
        return lowtide.plan_file(target, watch=lambda progress: status.update(line(progress)), **given)


def _show(record: Any, top: int, verbose: bool) -> bool:
    """Prints the explanation; returns whether planning was interrupted."""
    from lowtide.ir.plan import Status
    from lowtide.report.explain import explain, renderable

    console = Terminal()
    console.print(renderable(explain(record, top), console.width, verbose))
    return bool(record.outcome.status is Status.INTERRUPTED)
