"""`lowtide replay TRACE`: what policies would have evicted from a recorded run, and what that costs. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from lowtide.cli.failure import REFUSED, told
from lowtide.errors import BudgetError, EagerError
from lowtide.report.terminal import Terminal
from lowtide.units import format_B, format_percent, format_s, parse_budget

if TYPE_CHECKING:
    from lowtide.eager_engine.replay import ReplayResult, Rules
    from lowtide.ir.tape import Tape

_STDOUT = "-"
_HALF = ("50%",)
_SHARE = re.compile(r"\s*([0-9]*\.[0-9]+|[0-9]+(?:\.[0-9]+)?\s*%)\s*(?:of\s+plain\s*)?")


def replay(
    trace: Annotated[Path, typer.Argument(help="A recorded run, as DTR's simulator reads it: .jsonl, .jsonl.gz.")],
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="By name; several make a table. All, if not given.")
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget", "-b", help='Bytes, "512MiB", or a share of the run\'s own peak: 0.5, 50%, 1.5. Several too.'
        ),
    ] = None,
    accounting: Annotated[
        Literal["addresses", "bytes"], typer.Option(help="Whether bytes have addresses, so that holes count.")
    ] = "addresses",
    published: Annotated[
        bool,
        typer.Option("--published", help="DTR's own rules: no addresses, writes make copies, views are recomputed."),
    ] = False,
    limit: Annotated[float, typer.Option(min=1.0, help="Give up at so many times the plain time; inf: never.")] = 2.0,
    json: Annotated[str | None, typer.Option(metavar="PATH", help="Save the results here; - prints them.")] = None,
) -> None:
    """Replay a recorded run under eviction policies, inside budgets."""
    with told():
        import msgspec

        from lowtide.eager_engine.replay import PUBLISHED, Rules
        from lowtide.ir.tape import load_tape

        rules = PUBLISHED if published else Rules(accounting=accounting)
        rules = msgspec.structs.replace(rules, limit=None if limit == float("inf") else limit)
        names = _names(policy)
        tape = load_tape(trace, in_place=rules.in_place)
        budgets_B = [_budget_B(text, tape) for text in budget or _HALF]
        console = Terminal(stderr=True)
        rows = []
        for name in names:
            with console.status(f"replaying {tape.name} under {name}"):
                rows.append(_row(trace, tape, name, budgets_B, rules))
        _show(tape, rules, rows, json)
    if all(result.refused for row in rows for result in row):
        raise typer.Exit(REFUSED)


def _names(given: Sequence[str] | None) -> Sequence[str]:
    """The policies that are meant: those given, each once, or all.

    Raises:
        EagerError: if there is no such policy.
    """
    from lowtide.eager_engine.policy_names import policy_names

    there = policy_names()
    for name in given or ():
        if name not in there:
            raise EagerError(f"there is no policy {name!r}: write one of {', '.join(sorted(there))}")
    return tuple(dict.fromkeys(given or there))


def _budget_B(text: str, tape: Tape) -> int:
    """Reads a budget; shares are of the run's own peak, of which there may be more than one.

    Raises:
        BudgetError: if it is malformed, or leaves no byte.
    """
    if share := _SHARE.fullmatch(text):
        number = share[1].rstrip("% \t")
        size_B = int(float(number) / (100.0 if number != share[1] else 1.0) * tape.peak_B)
        if size_B <= 0:
            raise BudgetError(
                f"a budget of {text!r} of the run's peak, {format_B(tape.peak_B)}, leaves no byte: a share is more "
                "than 0; 1.0, or 100%, is the peak itself, and more than that is fine"
            )
        return size_B
    budget = parse_budget(text)
    if budget.size_B is None:
        raise BudgetError(f'a replay knows no device: give {text!r} as bytes, "512MiB", or a share of the run\'s peak')
    return budget.size_B


def _row(trace: Path, tape: Tape, name: str, budgets_B: Sequence[int], rules: Rules) -> list[ReplayResult]:
    """Replays the trace under one policy at every budget."""
    import msgspec

    from lowtide.eager_engine.policy_names import COPYING
    from lowtide.eager_engine.replay import compiled_replay, compiled_tape
    from lowtide.ir.tape import load_tape

    if rules.in_place and name in COPYING:
        rules = msgspec.structs.replace(rules, in_place=False)
        tape = load_tape(trace, in_place=False)
    compiled = compiled_tape(tape)
    return [compiled_replay(tape, name, budget_B, rules, compiled=compiled) for budget_B in budgets_B]


def _show(tape: Tape, rules: Rules, rows: Sequence[Sequence[ReplayResult]], json: str | None) -> None:
    """Prints a table, or the JSON in its place; saves it where it is wanted."""
    import msgspec

    from lowtide.ir.whole_file import write_whole

    facts = {"trace": tape.name, "key": tape.key, "peak_B": tape.peak_B, "time_ns": tape.time_ns}
    results = [result for row in rows for result in row]
    text = msgspec.json.format(msgspec.json.encode(facts | {"rules": rules, "results": results}), indent=1).decode()
    if json == _STDOUT:
        typer.echo(text)
        return
    console = Terminal()
    console.print(
        f"{tape.name}: {format_s(tape.time_ns * 1e-9)} and at most {format_B(tape.peak_B)} without a budget",
        markup=False,
        highlight=False,
    )
    console.print(_by_budget(tape, rows) if len(rows[0]) > 1 else _in_detail(tape, rows))
    if len(results) == 1 and results[0].refused:
        console.print(results[0].refused, markup=False, highlight=False, soft_wrap=True)
    if json is not None:
        write_whole(Path(json), text)
        console.print(f"saved {json}", markup=False, highlight=False, soft_wrap=True)


def _by_budget(tape: Tape, rows: Sequence[Sequence[ReplayResult]]) -> Table:
    """Time, as a multiple of the plain one, per policy and budget."""
    table = Table("policy", title="times the plain time", title_justify="left")
    for result in rows[0]:
        table.add_column(
            f"{format_percent(result.budget_B / tape.peak_B)}\n{format_B(result.budget_B)}", justify="right"
        )
    for row in rows:
        table.add_row(row[0].policy, *(_time(result) for result in row))
    return table


def _in_detail(tape: Tape, rows: Sequence[Sequence[ReplayResult]]) -> Table:
    """All that is known of each policy at one budget."""
    budget_B = rows[0][0].budget_B
    title = f"in {format_B(budget_B)}, {format_percent(budget_B / tape.peak_B)} of that"
    table = Table("policy", title=title, title_justify="left")
    for heading in ("time", "evictions", "evicted", "recomputations", "peak", "left free", "a search", "moved"):
        table.add_column(heading, justify="right")
    for (result,) in rows:
        table.add_row(
            result.policy,
            _time(result),
            f"{result.evictions:,}",
            format_B(result.evicted_B),
            f"{result.recomputations:,}",
            format_B(result.peak_B),
            format_percent(result.fragmentation),
            format_s(result.search_s / max(1, result.searches)),
            format_B(result.moved_B),
        )
    return table


def _time(result: ReplayResult) -> str:
    if result.refused is None:
        return f"{result.overhead:.3f} x"
    return "out of memory" if result.refused.startswith("out of memory") else "too slow"
