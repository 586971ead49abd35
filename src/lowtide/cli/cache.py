"""`lowtide cache`: what lowtide keeps on disk, and clearing it. Measurements, plans, and the compiled arena."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from lowtide.cli.failure import told
from lowtide.report.terminal import Terminal

if TYPE_CHECKING:
    from lowtide.ir.file_store import Entry
    from lowtide.plan_cache.store import Header

cache = typer.Typer(help="Show or clear what lowtide keeps on disk.", no_args_is_help=False, add_completion=False)
_AGE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smhdw])\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LISTED = 20
_Json = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of tables.")]


@cache.callback(invoke_without_command=True)
def show(context: typer.Context, as_json: _Json = False) -> None:
    """Show what lowtide keeps on disk: measurements, plans, and the compiled arena."""
    if context.invoked_subcommand is not None:
        return
    with told():
        found = _contents()
        console = Terminal()
        if as_json:
            console.print(json.dumps(found), markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(_tables(found))


@cache.command()
def clear(
    profiles: Annotated[bool, typer.Option("--profiles", help="Only measurements.")] = False,
    plans: Annotated[bool, typer.Option("--plans", help="Only plans.")] = False,
    shim: Annotated[bool, typer.Option("--shim", help="Only compiled modules; the next use compiles anew.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help='Only what was last used (plans) or written so long ago: "30d", "12h".')
    ] = None,
    as_json: _Json = False,
) -> None:
    """Delete what lowtide keeps on disk; all of it, or the named parts. What is needed is found out anew."""
    with told():
        age_s = _age_s(older_than)
        everything = not (profiles or plans or shim)
        gone: dict[str, tuple[int, int]] = {}
        if profiles or everything:
            gone["profiles"] = _clear_profiles(age_s)
        if plans or everything:
            gone["plans"] = _plan_cache().store.clear(age_s)
        if shim or everything:
            gone["shim"] = _clear_files(_shim_files(), age_s)
        console = Terminal()
        if as_json:
            said = {part: {"removed": count, "size_B": size_B} for part, (count, size_B) in gone.items()}
            console.print(json.dumps(said), markup=False, highlight=False, soft_wrap=True)
            return
        for part, (count, size_B) in gone.items():
            console.print(_removed(part, count, size_B), markup=False, highlight=False, soft_wrap=True)


def _removed(part: str, count: int, size_B: int) -> str:
    from lowtide.units import format_B

    noun = {"profiles": "measurement file", "plans": "plan", "shim": "compiled module"}[part]
    return f"removed {count} {noun}{'' if count == 1 else 's'}, {format_B(size_B)}"


def _age_s(text: str | None) -> float:
    """Reads an age.

    Raises:
        LowtideError: if it is malformed.
    """
    from lowtide.errors import LowtideError

    if text is None:
        return 0.0
    match = _AGE.fullmatch(text)
    if match is None:
        raise LowtideError(f'cannot read the age {text!r}: write a number with s, m, h, d or w, as in "30d"')
    return float(match[1]) * _SECONDS[match[2]]


def _plan_cache() -> Any:
    from lowtide.plan_cache.store import PlanCache

    return PlanCache()


def _shim_files() -> list[Path]:
    from lowtide.device.shim_build import default_folder

    return sorted(p for p in default_folder().glob("*") if p.is_file() and p.suffix != ".lock")


def _clear_profiles(age_s: float) -> tuple[int, int]:
    from lowtide.profile.cache import ProfileCache
    from lowtide.profile.needs_cache import needs_store

    measured, optimizers = ProfileCache().clear(age_s), needs_store().clear(age_s)
    return measured[0] + optimizers[0], measured[1] + optimizers[1]


def _clear_files(paths: list[Path], age_s: float) -> tuple[int, int]:
    """Deletes files of at least that age; returns how many, and their bytes."""
    now_s, count, bytes_B = time.time(), 0, 0
    for path in paths:
        facts = path.stat()
        if now_s - facts.st_mtime >= age_s:
            path.unlink(missing_ok=True)
            count, bytes_B = count + 1, bytes_B + facts.st_size
    return count, bytes_B


def _contents() -> dict[str, Any]:
    """Everything that is shown, as plain data."""
    from lowtide.device.shim_build import default_folder
    from lowtide.profile.cache import ProfileCache
    from lowtide.profile.needs_cache import needs_store

    plans, modules = _plan_cache(), _shim_files()
    profiles, needs = ProfileCache().store, needs_store().entries()
    measured = profiles.entries()
    return {
        "profiles": {
            "folder": str(profiles.folder),
            "size_B": sum(f.size_B for f in measured),
            "optimizers": len(needs),
            "files": [
                {"device": f.about.fingerprint.device, "torch": f.about.fingerprint.torch,
                 "threads": f.about.fingerprint.threads, "entries": f.about.entries, "size_B": f.size_B,
                 "used_s": f.used_s}
                for f in measured
            ],
        },
        "plans": {
            "folder": str(plans.store.folder),
            "limit_B": plans.limit_B,
            "entries": [_plan(entry) for entry in plans.store.entries()],
        },
        "shim": {
            "folder": str(default_folder()),
            "files": [{"name": p.name, "size_B": p.stat().st_size, "used_s": p.stat().st_mtime} for p in modules],
        },
    }  # fmt: skip


def _plan(entry: Entry[Header]) -> dict[str, Any]:
    head = entry.about
    return {
        "key": head.key, "structure": head.structure, "name": head.name, "shapes": head.shapes, "lowtide": head.lowtide,
        "budget_B": head.budget_B, "size_B": entry.size_B, "used_s": entry.used_s,
    }  # fmt: skip


def _tables(found: dict[str, Any]) -> Group:
    from lowtide.units import format_B

    profiles, plans, shim = found["profiles"], found["plans"], found["shim"]
    measured = _table("device", "torch", "threads", ">measurements", ">bytes", "written")
    for row in profiles["files"]:
        measured.add_row(
            row["device"], row["torch"], str(row["threads"]), f"{row['entries']:,}", format_B(row["size_B"]),
            _ago(row["used_s"]),
        )  # fmt: skip
    kept = _table("program", "shapes", ">budget", ">bytes", "last used")
    for row in plans["entries"][:_LISTED]:
        kept.add_row(
            Text(row["name"] or row["structure"]), Text(row["shapes"]), format_B(row["budget_B"]),
            format_B(row["size_B"]), _ago(row["used_s"]),
        )  # fmt: skip
    compiled = _table("module", ">bytes", "written")
    for row in shim["files"]:
        compiled.add_row(Text(row["name"]), format_B(row["size_B"]), _ago(row["used_s"]))
    bytes_B = sum(row["size_B"] for row in plans["entries"])
    count = len(plans["entries"])
    limit = f"at most {format_B(plans['limit_B'])}" if plans["limit_B"] else "turned off by LOWTIDE_PLAN_CACHE=0"
    shown = f", the {_LISTED} used last:" if count > _LISTED else ""
    return Group(
        Text(
            f"measurements: {profiles['folder']}, {format_B(profiles['size_B'])}, and of {profiles['optimizers']} "
            "optimizers",
            style="bold",
        ),
        measured,
        Text(),
        Text(f"plans: {plans['folder']}, {count} in {format_B(bytes_B)}, {limit}{shown}", style="bold"),
        kept,
        Text(),
        Text(f"compiled arena: {shim['folder']}", style="bold"),
        compiled,
    )


def _table(*columns: str) -> Table:
    """A table without lines; a column whose name begins with `>` is set flush right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def _ago(now_s: float) -> str:
    """How long ago something happened, in its largest unit."""
    passed_s = max(0.0, time.time() - now_s)
    for unit in ("d", "h", "m"):
        if passed_s >= _SECONDS[unit]:
            return f"{passed_s / _SECONDS[unit]:.0f} {unit} ago"
    return "now"
