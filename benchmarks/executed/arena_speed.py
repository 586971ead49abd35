"""What does an allocation with its free cost in the arena, beside posix_memalign? With no holes, and with 2,500.

`python -m benchmarks.executed.arena_speed` compiles `arena_speed.cpp` and writes `results/arena_speed.md` and `.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results_file import table, write

RESULTS = "arena_speed"
ROOT = Path(__file__).resolve().parents[2]
RUNS = 5
ROWS = 12
NOTE = (
    "Nanoseconds of one allocation and one free, one thread, the arena's mutex included. Each is the fastest of fifteen "
    "rounds of 20,000 pairs; of five runs of the program, the median, with the spread of the arena's beside it. In the "
    "first eight rows the stock allocator returns one block again and again, however many holes the arena has; in the "
    "others both have the same work, on blocks chosen at random."
)


def build(folder: Path) -> Path:
    """The program, with the compiler flags of a release."""
    core = ROOT / "src" / "core"
    program = folder / "arena_speed"
    compiler = shutil.which("g++") or "c++"
    sources = [Path(__file__).with_suffix(".cpp"), *sorted(core.glob("arena*.cpp"))]
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "-pthread", f"-I{core}"]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", str(program)], check=True)
    return program


def measure(program: Path) -> list[dict[str, Any]]:
    """One run of the program."""
    done = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        runs = [measure(program) for _ in range(RUNS)]
    numbers, rows = [], []
    for cases in zip(*runs, strict=True):
        arena_ns = sorted(case["arena_ns"] for case in cases)
        stock_ns = sorted(case["stock_ns"] for case in cases)
        ours, theirs = arena_ns[RUNS // 2], stock_ns[RUNS // 2]
        facts = {"case": cases[0]["case"], "holes": cases[0]["holes"], "arena_ns": ours, "stock_ns": theirs}
        numbers.append(facts | {"arena_lowest_ns": arena_ns[0], "arena_highest_ns": arena_ns[-1]})
        spread = f"{arena_ns[0]:.0f} to {arena_ns[-1]:.0f}"
        rows.append(
            [facts["case"], facts["holes"], f"{ours:.0f}", spread, f"{theirs:.0f}", f"{ours / theirs:.2f}"],
        )
    columns = ["request", "holes", "arena, ns", "spread, ns", "posix_memalign, ns", "ratio"]
    path = write(RESULTS, "Speed of the arena", [table("Allocation and free", columns, rows, ROWS, NOTE)], numbers)
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
