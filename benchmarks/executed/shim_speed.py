"""What does an allocation with its free cost through torch's allocator interface, stock and from an arena?

`python -m benchmarks.executed.shim_speed` writes `results/shim_speed.md` and `.json`.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.results_file import table, write
from lowtide.device import shim
from lowtide.device.arena import Arena, Table, enter, fast_at, leave

RESULTS = "shim_speed"
PAIRS = 20_000
ROUNDS = 15
SIZE_B = 2**20
HOLES = 2_500
CALLS = 100_000
NOTE = (
    f"Nanoseconds of one allocation and one free of 1 MiB, one thread, called as oneDNN calls it: no tensor, no Python. "
    f"Medians of {ROUNDS} interleaved rounds of {PAIRS:,} pairs; the spread is from the fastest to the slowest quarter. "
    "The first row is measured twice per round (A/A), so its ratio says what is noise. 2,500 holes lie between blocks "
    "that stay: all of them smaller than the request, or all large enough for it. A planned place is looked up, "
    "checked and marked as taken."
)
CALLS_NOTE = f"Nanoseconds of a call from Python without the loop around it; medians of {ROUNDS} rounds of {CALLS:,}."

Work = Callable[[], object]


@contextmanager
def holes(count: int, hole_B: int) -> Iterator[None]:
    """An engaged arena with holes of one size between blocks that stay."""
    block_B = 4096
    arena = Arena(count * (hole_B + block_B) + 64 * SIZE_B, small_zone_B=0, persistent_B=0)
    with arena.engaged():
        pieces = [torch.empty(size, dtype=torch.uint8) for _ in range(count) for size in (block_B, hole_B)]
        del pieces[1::2]
        yield
        del pieces


def pairs(work: Work) -> float:
    """Nanoseconds of a pair in one round."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / PAIRS


def measure() -> dict[str, list[float]]:
    """Every case once per round."""
    module = shim.load()
    stock = functools.partial(module.raw_cycles, SIZE_B, PAIRS, True)
    ours = functools.partial(module.raw_cycles, SIZE_B, PAIRS, False)
    found: dict[str, list[float]] = {}

    def note(name: str, work: Work) -> None:
        found.setdefault(name, []).append(pairs(work))

    planned = Table([SIZE_B], [0], [0, 1], ["planned"])
    for _ in range(ROUNDS):
        note("stock allocator", stock)
        note("the same again", stock)
        note("no arena engaged", ours)
        for count, hole_B, what in ((0, 0, ""), (HOLES, 8192, ", too small"), (HOLES, 2 * SIZE_B, ", large enough")):
            with holes(count, hole_B):
                note(f"arena, {count:,} holes{what}", ours)
        with Arena(64 * SIZE_B, small_zone_B=0, persistent_B=0).engaged():
            enter(planned)
            note("arena, planned place", ours)
            assert leave() == PAIRS
    return found


def calls() -> dict[str, float]:
    """Nanoseconds of the calls that generated code makes."""
    arena = Arena(64 * SIZE_B, small_zone_B=0, persistent_B=0)
    names = {
        "at": fast_at(),
        "enter": enter,
        "leave": leave,
        "arena": arena,
        "table": Table([SIZE_B], [0], [0, 1], ["a"]),
    }
    arena.engage()
    enter(names["table"])
    found = {
        "at(0)": call_ns("at(0)", names),
        "enter(table); leave()": call_ns("enter(table); leave()", names),
        "arena.engage(); arena.disengage()": call_ns("arena.engage(); arena.disengage()", names),
    }
    arena.disengage()
    return found


def call_ns(code: str, names: dict[str, object]) -> float:
    """Nanoseconds of a statement, without the loop around it."""
    with_it = timeit.repeat(code, globals=names, number=CALLS, repeat=ROUNDS)
    without = timeit.repeat("pass", number=CALLS, repeat=ROUNDS)
    return (statistics.median(with_it) - statistics.median(without)) / CALLS * 1e9


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    found = measure()
    base = statistics.median(found["stock allocator"])
    rows = []
    for name, values in found.items():
        low, _, high = statistics.quantiles(values)
        ratio = statistics.median(a / b for a, b in zip(values, found["stock allocator"], strict=True))
        rows.append([name, f"{statistics.median(values):.0f}", f"{low:.0f} to {high:.0f}", f"{ratio:.2f}"])
    from_python = calls()
    tables = [
        table("Allocation and free", ["allocator", "ns", "spread, ns", "over stock"], rows, len(found), NOTE),
        table(
            "Calls of generated code", ["call", "ns"], [[k, f"{v:.0f}"] for k, v in from_python.items()], 3, CALLS_NOTE
        ),
    ]
    path = write(RESULTS, "Speed of torch's memory in an arena", tables, {"pairs_ns": found, "calls_ns": from_python})
    print(path.read_text(), f"stock: {base:.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
