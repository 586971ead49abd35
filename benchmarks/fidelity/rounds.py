"""The tests once for every way in which a processor or its libraries may round, on two threads, and beside a busy neighbour.

`python -m benchmarks.fidelity.rounds [--only ROUND ...] [--paths PATH ...] [--resume] [--jobs N]` writes `results/rounds.md` and `.json`;
rounds and paths that a run leaves out stay as an earlier one found them. It fails if a test failed, or if a path of a
round is missing. The variables make one processor compute as another would, as far as one can: with fewer vector
instructions, or with the code paths that MKL and oneDNN take on other processors.

Units: `_s` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.fidelity.suite_run import failures_text, run_tests
from benchmarks.results_file import read_numbers, table, write
from lowtide.device.fingerprint import processor_kind

RESULTS = "rounds"
ONE = {"OMP_NUM_THREADS": "1"}
# The three variables reach three libraries, none of which looks at another's: one round sets them all.
OLDEST = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
ROUNDS: dict[str, dict[str, str]] = {
    "as it is": ONE,
    "oldest of each": ONE | OLDEST,
    "AVX2 of each": ONE | AVX2,
    "two threads": {"OMP_NUM_THREADS": "2"},
    "busy neighbour": ONE,
}
NEIGHBOURED = "busy neighbour"
PATHS = (
    "tests/ops", "tests/profile", "tests/runtime", "tests/semantics", "tests/capture", "tests/eager_engine", "tests/api",
)  # fmt: skip
"""Folders whose tests run operators, so that their results hang on the processor; the others plan, print and check."""
LIBRARIES = ("torch", "transformers", "timm", "torchvision", "numpy")
_HOG = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(200_000))
"""


@contextlib.contextmanager
def busy_neighbour(limit_s: float) -> Iterator[None]:
    """Inside, as many processes compute as there are cores; they end with it, with this process, and at the limit."""
    command = [sys.executable, "-c", _HOG, str(limit_s)]
    hogs = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.terminate()
        for hog in hogs:
            hog.wait()


def tables(found: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown: a row per round, and which paths it ran."""
    rows = []
    for name, environment in ROUNDS.items():
        there = found.get(name, {})
        settings = ", ".join(f"{k}={v}" for k, v in environment.items())
        if not there:
            rows.append([name, settings, *["not run"] * 7])
            continue
        counts = [sum(row[kind] for row in there.values()) for kind in ("passed", "failed", "skipped")]
        failures = failures_text({"failures": [f for row in there.values() for f in row["failures"]]})
        seconds = f"{sum(row['seconds_s'] for row in there.values()):.0f}"
        dates = max(row["date"] for row in there.values())
        rows.append([name, settings, ", ".join(there), *counts, seconds, dates, failures])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    note = f"{versions}. Processor: {processor_kind()}."
    columns = ["round", "settings", "paths run", "passed", "failed", "skipped", "s", "date", "what failed"]
    return [table("Rounds", columns, rows, len(ROUNDS), note)]


def missing(found: dict[str, dict[str, Any]], paths: list[str]) -> list[str]:
    """Every path of a round that was not run."""
    return [f"{name}: {path}" for name in ROUNDS for path in paths if path not in found.get(name, {})]


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(ROUNDS), choices=list(ROUNDS), metavar="ROUND")
    parser.add_argument("--paths", nargs="*", default=list(PATHS), help="what to run")
    parser.add_argument("--marks", default="not breadth", help="as for pytest -m")
    parser.add_argument("--resume", action="store_true", help="leave out what was run")
    parser.add_argument("--jobs", type=int, default=1, help="processes of pytest in a round")
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds of one path in one round")
    options = parser.parse_args(arguments)
    numbers = read_numbers(RESULTS)
    found: dict[str, dict[str, Any]] = numbers.get("rounds", {})
    for name in options.only:
        rows = found.setdefault(name, {})
        for path in options.paths:
            if options.resume and rows.get(path, {}).get("ended"):
                continue
            beside = busy_neighbour(options.limit) if name == NEIGHBOURED else contextlib.nullcontext()
            with beside:
                rows[path] = run_tests(
                    sys.executable, [path], ROUNDS[name], marks=options.marks, limit_s=options.limit, jobs=options.jobs
                )
            write(RESULTS, "The tests under other arithmetic", tables(found), {"rounds": found})
            print(
                name, path, {k: v for k, v in rows[path].items() if k != "failures"}, rows[path]["failures"], flush=True
            )
    absent = missing(found, options.paths)
    for text in absent:
        print(f"NOT RUN: {text}", flush=True)
    failed = any(found[name][path]["failed"] for name in options.only for path in options.paths if path in found[name])
    return int(failed or bool(absent))


if __name__ == "__main__":
    sys.exit(main())
