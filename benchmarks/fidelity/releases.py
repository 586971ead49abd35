"""The tests with other releases: the newest torch, transformers, timm and torchvision, on every Python that lowtide is for.

`python -m benchmarks.fidelity.releases [--only NAME ...] [--folder PATH] [--keep] [--resume]` makes one environment per
combination (several GB each, deleted after its run unless kept), runs a choice of tests in it, and writes
`results/releases.md` and `.json`. It goes on where one combination breaks, and fails in the end if something broke or
was not run. A scheduled job calls it, as `make releases`.

Units: `_s` seconds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fidelity.suite_run import ROOT, failures_text, run_tests
from benchmarks.results_file import read_numbers, table, write

RESULTS = "releases"
NEWEST = "newest"


@dataclass(frozen=True)
class Combination:
    """A release of Python, and of torch: `NEWEST`, or its first two numbers. Everything else is the newest there is."""

    python: str
    torch: str

    @property
    def name(self) -> str:
        """Of its folder and its row."""
        return f"py{self.python}-torch-{self.torch}"

    @property
    def requirement(self) -> str:
        """For pip."""
        return "torch" if self.torch == NEWEST else f"torch=={self.torch}.*"


COMBINATIONS = (
    Combination("3.12", NEWEST),
    Combination("3.12", "2.14"),
    Combination("3.13", NEWEST),
    Combination("3.11", "2.11"),
    Combination("3.11", "2.12"),
    Combination("3.11", "2.13"),
    Combination("3.11", NEWEST),
)
TESTS = (
    "tests/device", "tests/semantics", "tests/capture", "tests/api/test_equality.py", "tests/eager_engine/test_runtime.py",
    "tests/zoo",
)  # fmt: skip
LIBRARIES = ("torch", "transformers", "timm", "torchvision", "numpy")
_VERSIONS = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {LIBRARIES}}}))"


class Broken(Exception):
    """An environment that could not be made; says by which command, and its last words."""


def interpreter(release: str) -> str:
    """The first Python of a release on the path.

    Raises:
        Broken: if there is none.
    """
    for name in (f"python{release}", "python3", "python"):
        path = shutil.which(name)
        text = "import sys; print('%d.%d' % sys.version_info[:2])"
        if path and subprocess.run([path, "-c", text], capture_output=True, text=True).stdout.strip() == release:
            return path
    raise Broken(f"there is no Python {release} on the path")


def made(combination: Combination, folder: Path) -> str:
    """Makes an environment, or finds the one that an earlier run has kept.

    Returns: its interpreter.

    Raises:
        Broken: if that fails.
    """
    place = folder / combination.name
    python, finished = str(place / "bin" / "python"), place / ".made"
    if finished.exists():
        return python
    _done([interpreter(combination.python), "-m", "venv", str(place)])
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    _done([*pip, combination.requirement])
    constraints = place / "constraints.txt"
    version = _done([python, "-c", "import importlib.metadata as m; print(m.version('torch'))"]).strip()
    constraints.write_text(f"torch=={version}\n")
    _done([*pip, "-c", str(constraints), "-e", f"{ROOT}[test]"])
    finished.touch()
    return python


def _done(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Broken(f"{' '.join(command[1:])}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def tried(combination: Combination, folder: Path, paths: list[str], limit_s: float) -> dict[str, Any]:
    """The row of a combination."""
    try:
        python = made(combination, folder)
        versions = json.loads(_done([python, "-c", _VERSIONS]))
    except Broken as error:
        today = datetime.date.today().isoformat()
        return {
            "passed": 0,
            "failed": 1,
            "skipped": 0,
            "seconds_s": 0.0,
            "ended": False,
            "date": today,
            "failures": [str(error)],
        }
    row = run_tests(python, paths, {"OMP_NUM_THREADS": "1"}, marks="not breadth", limit_s=limit_s)
    return {**row, "versions": versions, "paths": paths}


def tables(found: dict[str, Any]) -> list[str]:
    """Markdown: a row per combination, those that were not run among them."""
    rows = []
    for combination in COMBINATIONS:
        row = found.get(combination.name)
        head = [combination.python, combination.torch]
        if row is None:
            rows.append([*head, *["not run"] * 12])
            continue
        versions = [row.get("versions", {}).get(name, "none") for name in LIBRARIES]
        counts = [row["passed"], row["failed"], row["skipped"], f"{row['seconds_s']:.0f}", row["date"]]
        rows.append([*head, *versions, ", ".join(row.get("paths", ["none"])), *counts, failures_text(row)])
    columns = [
        "Python",
        "torch asked for",
        *LIBRARIES,
        "tests",
        "passed",
        "failed",
        "skipped",
        "s",
        "date",
        "what broke",
    ]
    return [table("Releases", columns, rows, len(COMBINATIONS))]


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [c.name for c in COMBINATIONS]
    parser.add_argument("--only", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--paths", nargs="*", default=list(TESTS), help="tests to run")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "releases", help="where environments are made")
    parser.add_argument("--keep", action="store_true", help="leave the environments where they are")
    parser.add_argument("--resume", action="store_true", help="leave out what was run")
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds of the tests of one combination")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = read_numbers(RESULTS)
    for combination in COMBINATIONS:
        if combination.name not in options.only or (options.resume and found.get(combination.name, {}).get("ended")):
            continue
        row = found[combination.name] = tried(combination, options.folder, options.paths, options.limit)
        if not options.keep:
            shutil.rmtree(options.folder / combination.name, ignore_errors=True)
        write(RESULTS, "Other releases", tables(found), found)
        print(combination.name, row, flush=True)
    absent = [name for name in names if name not in found]
    for name in absent:
        print(f"NOT RUN: {name}", flush=True)
    return int(bool(absent) or any(row["failed"] for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
