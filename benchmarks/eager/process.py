"""Rows of a process that may be refused, run out of time or die: what it said until then, and what became of the rest."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.parts import Row

LIMIT_s = 240.0


def rows_until_its_end(*arguments: object, limit_s: float = LIMIT_s) -> tuple[list[Row], str | None]:
    """Runs `benchmarks.eager.loops`, which prints all of its rows so far after each of them.

    Returns: its rows, and how it ended before the last of them; None if it did not.
    """
    command = [sys.executable, "-m", "benchmarks.eager.loops", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=limit_s)
            ended = None if process.returncode == 0 else f"ended with {process.returncode}: {_last(errors)}"
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            ended = f"over {limit_s:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("[") and line.endswith("]")]
    return (json.loads(lines[-1]) if lines else []), ended


def _last(errors: str) -> str:
    """What it said last."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing said"
