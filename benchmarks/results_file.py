"""Result files: a table for people and the same numbers as JSON, with machine, versions and date."""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "results"


class MissingRow(AssertionError):
    """A table lacks a row that it promises."""


def fresh_profiles() -> None:
    """Measures every operator anew in this process: profiles made on a busy machine would spoil the comparison."""
    from lowtide.device.shim_build import default_folder

    os.environ.setdefault("LOWTIDE_SHIM_DIR", str(default_folder()))
    os.environ["LOWTIDE_CACHE_DIR"] = tempfile.mkdtemp(prefix="lowtide-bench-")


def conditions() -> dict[str, Any]:
    """Where and when a measurement was made."""
    from lowtide.device.fingerprint import device_name
    from lowtide.device.heap import is_warm

    return {
        "date": datetime.date.today().isoformat(),
        "processor": device_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "heap kept warm": is_warm(),
    }


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], expected: int, note: str = "") -> str:
    """A Markdown table.

    Raises:
        MissingRow: if there are not as many rows as expected, or one has an empty cell.
    """
    if len(rows) != expected:
        raise MissingRow(f"{title}: {len(rows)} rows of {expected}")
    for row in rows:
        if len(row) != len(columns) or any(cell is None or cell == "" for cell in row):
            raise MissingRow(f"{title}: the row {row} is incomplete")
    lines = [f"## {title}", ""]
    lines += [note, ""] if note else []
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join([*lines, ""])


def read_numbers(name: str) -> Any:
    """The numbers of an earlier run; empty if there was none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text())["numbers"] if path.exists() else {}


def write(name: str, heading: str, tables: Sequence[str], numbers: Any) -> Path:
    """Writes `results/<name>.md` and `.json`, each replaced as a whole."""
    FOLDER.mkdir(exist_ok=True)
    facts = conditions()
    head = [f"# {heading}", "", ", ".join(f"{k}: {v}" for k, v in facts.items()), ""]
    path = FOLDER / f"{name}.md"
    for target, text in (
        (path, "\n".join([*head, *tables])),
        (path.with_suffix(".json"), json.dumps({"conditions": facts, "numbers": numbers}, indent=1)),
    ):
        unfinished = target.with_suffix(target.suffix + ".draft")
        unfinished.write_text(text)
        unfinished.replace(target)
    return path
