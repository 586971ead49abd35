"""`python -m benchmarks.planning.floors [--only NAME ...]`: how low plans come, over two proved floors.

The floor of every plan holds for any recomputation. It lets finished gradients be dropped and computed a second time,
which plans here hardly do; the second floor forbids it. Where the smallest plan stands close to the second one, the
distance to the first is that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.problem_set import load, names
from benchmarks.results_file import read_numbers, table, write
from lowtide.ir.plan import Problem
from lowtide.planners.bounds.floors import once_behind_the_turn, op_floor
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.smallest import smallest_budget

RESULTS = "floors"
CUTS = 200  # minimum cuts per floor
COLUMNS = ("problem", "floor", "floor, gradients once", "smallest plan", "over the floor", "over the second floor")


def row(name: str) -> list[str]:
    """Both floors and the smallest plan of one problem."""
    graph = base_order(load(name))
    program = stage_program(graph)
    floor_B = op_floor(program, CUTS).floor_B
    once_B = max(floor_B, op_floor(once_behind_the_turn(program), CUTS).floor_B)
    smallest_B = smallest_budget(Problem(graph, 0))
    assert smallest_B is not None
    sizes = [f"{size_B / 2**20:,.0f} MiB" for size_B in (floor_B, once_B, smallest_B)]
    return [name, *sizes, f"{smallest_B / floor_B:.3f}", f"{smallest_B / once_B:.3f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and writes `results/floors.md` and `.json`; rows of other problems stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=names(), default=names(), metavar="NAME")
    numbers: dict[str, list[str]] = dict(read_numbers(RESULTS))
    for name in parser.parse_args(arguments).only:
        numbers[name] = row(name)
    rows = [numbers[name] for name in names() if name in numbers]
    write(RESULTS, "How low plans come", [table("Smallest plans", COLUMNS, rows, len(numbers))], numbers)


if __name__ == "__main__":
    main()
