"""`python -m benchmarks.planning.frontiers [--only NAME ...]`: least time at every budget of captured networks, with pictures.

Each network's frontier with the classical methods goes to `results/frontiers/` as JSON and SVG, the tables to
`results/frontiers.md`. Nothing is timed but the tracing itself.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import problem_set
from benchmarks.results_file import FOLDER, read_numbers, table, write
from lowtide.api.frontier_file import frontier_file
from lowtide.ir.frontier import FrontierRecord, Point
from lowtide.ir.text import load_frontier
from lowtide.units import format_B, format_percent, format_s

RESULTS = "frontiers"
NETWORKS = ("unet", "gpt2", "resnet50", "densenet121")
PICTURES = FOLDER / "frontiers"
ALPHAS = (0.75, 0.5, 0.25, 0.1, 0.05)
_HALF = 0.5
_NOTE = (
    "Overheads are over keeping everything; seconds by roofline for an A100. Alpha: the way from the proved floor to "
    "keep-all; percent: of keep-all. At least: what the proved bound leaves possible. The best other method is the "
    "fastest of those in the picture whose plan takes no more bytes."
)


@dataclass(frozen=True)
class Traced:
    """A frontier with what finding it took."""

    record: FrontierRecord
    operators: int
    seconds_s: float


def measure(name: str) -> Traced:
    """Traces one network and writes its JSON and its picture."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = problem_set.FOLDER / f"{name}.json.gz"
    began_s = time.monotonic()
    found = frontier_file(path)
    took_s = time.monotonic() - began_s
    found.save(_json(name))
    found.to_svg(PICTURES / f"{name}.svg")
    return Traced(found.record, len(problem_set.load(name).program), took_s)


def _json(name: str) -> Path:
    return PICTURES / f"{name}.json"


def summary(name: str, traced: Traced) -> list[object]:
    """The row of the first table."""
    record = traced.record
    wide = [p.gap for p in record.planned if p.budget_B >= _HALF * record.keep_all_B and p.gap is not None]
    half = record.at(int(_HALF * record.keep_all_B))
    smallest = "none"
    if record.smallest_B is not None:
        share = format_percent(record.smallest_B / record.keep_all_B)
        smallest = f"{format_B(record.smallest_B)}, {share}, {record.smallest_B / record.floor_B:.3f} x floor"
    return [
        name,
        f"{traced.operators:,}",
        f"{format_B(record.keep_all_B)}, {format_s(record.keep_all_s)}",
        format_B(record.floor_B),
        smallest,
        "no plan" if half is None else format_percent(half.overhead or 0.0),
        format_percent(max(wide)),
        len(record.points),
        format_s(traced.seconds_s),
    ]


def rows(name: str, record: FrontierRecord) -> list[list[object]]:
    """The rows of the second table: one per alpha, and the smallest plan."""
    span_B = record.keep_all_B - record.floor_B
    found = []
    for alpha in ALPHAS:
        budget_B = record.floor_B + int(alpha * span_B)
        point = next((p for p in record.points if p.budget_B == budget_B), None)
        found.append([name, f"{alpha:g}", *_cells(record, budget_B, point)])
    if record.smallest_B is not None:
        alpha = (record.smallest_B - record.floor_B) / span_B
        found.append([name, f"{alpha:.3f} (smallest)", *_cells(record, record.smallest_B, record.planned[-1])])
    return found


def _cells(record: FrontierRecord, budget_B: int, point: Point | None) -> list[object]:
    share = format_percent(budget_B / record.keep_all_B)
    others = [
        (p.overhead or 0.0, b.name) for b in record.baselines for p in b.points if (p.reserved_B or 0) <= budget_B
    ]
    other = f"{format_percent(min(others)[0])} ({min(others)[1]})" if others else "none"
    if point is None or point.time_s is None or point.gap is None:
        least = "not tried" if point is None else format_percent(point.bound_overhead)
        return [format_B(budget_B), share, "no plan", "no plan", least, "no plan", "no plan", other]
    return [
        format_B(budget_B),
        share,
        format_s(point.time_s),
        format_percent(point.overhead or 0.0),
        format_percent(point.bound_overhead),
        format_percent(point.gap),
        point.winner,
        other,
    ]


def main(arguments: list[str] | None = None) -> None:
    """Traces what is asked for, keeps the others from the last run, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NETWORKS, metavar="NAME", help="trace these anew, keep the others")
    wanted = parser.parse_args(arguments).only or list(NETWORKS)
    numbers = dict(read_numbers(RESULTS))
    for name in wanted:
        traced = measure(name)
        numbers[name] = {"operators": traced.operators, "seconds_s": traced.seconds_s}
        there = {
            n: Traced(load_frontier(_json(n)), numbers[n]["operators"], numbers[n]["seconds_s"])
            for n in NETWORKS
            if n in numbers and _json(n).exists()
        }
        _write(there, {n: numbers[n] for n in there})


def _write(there: dict[str, Traced], numbers: dict[str, object]) -> None:
    first = table(
        "Networks",
        ["network", "operators", "keep all", "floor", "smallest plan", "overhead at 50 %", "largest gap above 50 %",
         "budgets", "traced in"],
        [summary(name, traced) for name, traced in there.items()],
        len(there),
        " ".join(f"![{name}](frontiers/{name}.svg)" for name in there),
    )  # fmt: skip
    found = [row for name, traced in there.items() for row in rows(name, traced.record)]
    second = table(
        "Budgets",
        ["network", "alpha", "budget", "of keep-all", "time", "overhead", "at least", "gap", "winner",
         "best other method"],
        found,
        sum(len(ALPHAS) + bool(traced.record.planned) for traced in there.values()),
        _NOTE,
    )  # fmt: skip
    write(RESULTS, "Least time at every budget", [first, second], numbers)


if __name__ == "__main__":
    main()
