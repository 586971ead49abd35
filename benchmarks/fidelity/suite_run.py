"""One run of the tests in a process of its own, and what came of it, as pytest's report says.

Units: `_s` seconds.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_MOST = 12  # failures that are named in a table


def run_tests(
    python: str, paths: Sequence[str], environment: Mapping[str, str], *, marks: str, limit_s: float, jobs: int = 1
) -> dict[str, Any]:
    """Runs tests with an interpreter of choice.

    Arguments:
        python: the interpreter; pytest and lowtide are installed for it.
        paths: files, folders or tests, from the repository's root.
        environment: variables beside those of this process.
        marks: as for `pytest -m`; "" for all.
        jobs: processes of pytest; one file of tests stays with one of them.
        limit_s: after so long it is stopped, and that counts as a failure.

    Returns: counts of tests that passed, failed and were skipped, names of those that failed, seconds and date; and
        whether pytest came to its end, so that `--resume` leaves it out.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-m", marks, *paths]
        if jobs > 1:
            command += ["-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder"]
        begun_s = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **environment}, timeout=limit_s, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
            wrong = "" if done.returncode in (0, 1, 5) else f"pytest ended with {done.returncode}: {done.stdout[-300:]}"
        except subprocess.TimeoutExpired:
            wrong = f"stopped after {limit_s:.0f} s"
        seconds_s = time.monotonic() - begun_s
        row = _counted(report)
    if wrong:
        row["failures"].append(" ".join(wrong.split()))
        row["failed"] += 1
    return {**row, "ended": not wrong, "seconds_s": round(seconds_s, 1), "date": datetime.date.today().isoformat()}


def _counted(report: Path) -> dict[str, Any]:
    """What pytest wrote down; nothing where it wrote nothing."""
    found: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "failures": []}
    if not report.exists():
        return found
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            found["failed"] += 1
            found["failures"].append(f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}")
        elif "skipped" in kinds:
            found["skipped"] += 1
        else:
            found["passed"] += 1
    return found


def failures_text(row: Mapping[str, Any]) -> str:
    """The tests that failed, for a cell of a table."""
    names = [f"`{name.replace('|', '/')}`" for name in row["failures"]]
    more = [f"and {len(names) - _MOST} more"] if len(names) > _MOST else []
    return ", ".join([*names[:_MOST], *more]) or "none"
