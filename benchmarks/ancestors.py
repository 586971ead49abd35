"""The classical methods and ours on the same graphs and budgets, scored by the same simulator.

`python -m benchmarks.ancestors [--networks vgg19 ...] [--graphs FILE ...] [--limit 60] [--write]` prints a table per network: for budgets
between the proved floor and what keeping everything takes, each planner's overhead beside the strongest bound that any
of them proved for all schedules (the linear and integer programmes' own bounds, for fewer schedules, stand apart), its
peak and the time it took; and how much longer than the best known plan its plans take. The networks are layers as Checkmate models them (`checkmate_models.py`), and graphs
from files; Checkmate's figures for VGG-19 stand first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.checkmate_baselines import baseline, every_root
from benchmarks.checkmate_models import Layer, mobilenet, training, unet, vgg
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem
from lowtide.ir.simulate import simulate
from lowtide.ir.text import loads
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.bounds.op_floor import op_floor
from lowtide.planners.catalogue import CLASSICS
from lowtide.planners.classic.checkmate import Checkmate
from lowtide.planners.classic.rounding import LpRounding, RandomRounding
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.search import BOUND_CLASS

NETWORKS: dict[str, Callable[[], tuple[Layer, ...]]] = {"vgg19": vgg, "mobilenet": mobilenet, "unet": unet}
SHARES = (0.05, 0.2, 0.5, 0.8)  # of the way from the floor to keeping everything
WHOLE = (LpRounding(), RandomRounding(), Checkmate())  # with the sizes that they accept by themselves
PLANNERS: tuple[AbstractPlanner, ...] = (Portfolio(), *(p for p in CLASSICS if type(p) not in map(type, WHOLE)), *WHOLE)
PUBLISHED = (("checkpoint all", 58.896, 81.723), ("square root of n", 72.513, 69.448))


@dataclass(frozen=True)
class Cell:
    """One planner on one network and budget; fractions of what keeping everything takes, None where there is no plan.

    `bound` holds for all schedules, `class_bound` for those of Checkmate's class.
    """

    network: str
    budget_B: int
    budget: float
    planner: str
    status: str
    overhead: float | None = None
    bound: float = 0.0
    class_bound: float | None = None
    peak: float | None = None
    smallest: float | None = None
    plan_s: float = 0.0

    def row(self, bound: float) -> list[str]:
        """For people, beside the strongest bound."""
        smallest = "-" if self.smallest is None else f"from {self.smallest:.1%}"
        return [
            f"{self.budget_B / 1e6:.3f} MB ({self.budget:.0%})",
            self.planner,
            self.status,
            _percent(self.overhead),
            _percent(bound),
            _percent(self.class_bound),
            smallest if self.peak is None else f"{self.peak:.1%}",
            f"{self.plan_s:.2f}",
        ]


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * max(0.0, fraction):.2f} %"


def solve(name: str, graph: Graph, budget_B: int, planner: AbstractPlanner, limit_s: float) -> Cell:
    """Plans, checks, simulates."""
    problem = Problem(graph, budget_B, time_limit_s=limit_s)
    everything = stage_program(graph).keep_all(0)
    cell = Cell(name, budget_B, budget_B / everything.peak_B, planner.name, "")
    if reason := planner.refuses(problem):
        return replace(cell, status=f"refused: {reason}")
    began_s = time.perf_counter()
    outcome = planner.solve(problem)
    cell = replace(cell, plan_s=time.perf_counter() - began_s, status=outcome.status.name)
    least_s = everything.time_ps * 1e-12
    bound = max(0.0, outcome.bound_s / least_s - 1.0)
    cell = replace(cell, bound=bound) if outcome.bound_class == BOUND_CLASS else replace(cell, class_bound=bound)
    if outcome.schedule is None:
        return replace(cell, smallest=outcome.smallest_B and outcome.smallest_B / everything.peak_B)
    check(graph, outcome.schedule, budget_B)
    timeline = simulate(graph, outcome.schedule)
    return replace(cell, overhead=timeline.time_s / least_s - 1.0, peak=timeline.peak_B / everything.peak_B)


def published() -> list[list[str]]:
    """VGG-19, batch 1: the figures of Checkmate's authors, and what the simulator says of the same schedules."""
    layers = vgg()
    graph = training(layers, "vgg19")
    rows = []
    for (name, giga, mega), checkpoints in zip(
        PUBLISHED, (range(len(layers)), every_root(range(len(layers)))), strict=True
    ):
        timeline = simulate(graph, baseline(graph, checkpoints))
        rows.append([name, f"{giga} / {mega}", f"{timeline.time_s * 1e3:.3f} / {timeline.peak_B / 1e6:.3f}"])
    outcome = Portfolio().solve(Problem(graph, 51_380_224))
    if outcome.schedule is not None:
        timeline = simulate(graph, outcome.schedule)
        rows.append(
            ["optimum at 51.380 MB", "58.983 / 51.380", f"{timeline.time_s * 1e3:.3f} / {timeline.peak_B / 1e6:.3f}"]
        )
    return rows


def cells(name: str, graph: Graph, limit_s: float) -> list[Cell]:
    """All planners at all budgets."""
    program = stage_program(graph)
    floor_B, most_B = op_floor(program).floor_B, program.keep_all(0).peak_B
    found = []
    for share in SHARES:
        for planner in PLANNERS:
            found.append(solve(name, graph, floor_B + int(share * (most_B - floor_B)), planner, limit_s))
            sys.stderr.write(f"{found[-1]}\n")
    return found


def rows(found: Sequence[Cell]) -> list[list[str]]:
    """All cells beside the strongest bound of their budget."""
    strongest: dict[int, float] = {}
    for cell in found:
        strongest[cell.budget_B] = max(strongest.get(cell.budget_B, 0.0), cell.bound)
    return [cell.row(strongest[cell.budget_B]) for cell in found]


def ratios(found: Sequence[Cell]) -> list[list[str]]:
    """Per planner, how much longer its plans take than the best known ones: geometric mean and worst."""
    best: dict[int, float] = {}
    for cell in found:
        if cell.overhead is not None:
            best[cell.budget_B] = min(best.get(cell.budget_B, cell.overhead), cell.overhead)
    table = []
    for planner in PLANNERS:
        own = [c for c in found if c.planner == planner.name and c.overhead is not None]
        times = [(1.0 + (c.overhead or 0.0)) / (1.0 + best[c.budget_B]) for c in own]
        mean = f"{statistics.geometric_mean(times):.3f}" if times else "-"
        table.append([planner.name, f"{len(own)} of {len(best)}", mean, f"{max(times):.3f}" if times else "-"])
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables; writes `results/ancestors.md` and `.json` if asked to."""
    from benchmarks.results_file import table, write

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--graphs", nargs="*", type=Path, default=[], help="files with a graph")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per plan")
    parser.add_argument("--write", action="store_true", help="write the results")
    options = parser.parse_args(arguments)
    tables = [
        table(
            "VGG-19, batch 1, in Checkmate's layer model (10^9 multiplications / MB)",
            ("plan", "published", "simulated"),
            published(),
            3,
        )
    ]
    numbers = []
    graphs = {name: training(NETWORKS[name](), name) for name in options.networks}
    graphs |= {path.stem: loads(path.read_bytes(), Graph, str(path)) for path in options.graphs}
    for name, graph in graphs.items():
        found = cells(name, graph, options.limit)
        columns = ("budget", "planner", "status", "overhead", "bound", "bound of its class", "peak", "plan s")
        tables.append(table(name, columns, rows(found), len(SHARES) * len(PLANNERS)))
        heads = ("planner", "plans", "time / best known", "worst")
        tables.append(table(f"{name}: ratios", heads, ratios(found), len(PLANNERS)))
        numbers += [asdict(cell) for cell in found]
    sys.stdout.write("\n".join(tables))
    if options.write:
        write("ancestors", "The classical methods and ours", tables, numbers)


if __name__ == "__main__":
    main()
