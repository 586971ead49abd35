"""The classical methods and ours on the same graphs and budgets, scored by the same simulator.

`python -m benchmarks.planning.ancestors [--only NAME ...] [--alphas 0.5 0.25 0.1] [--limit 20]` writes `results/ancestors.md` and
`.json`; graphs that a run leaves out keep the rows of an earlier one. A table per graph: each planner's overhead at each
budget, beside the strongest bound for all schedules that was proved there, by any of them or for the planning table;
and how much longer than the best known plan its plans take. The graphs are layers as Checkmate models them
(`checkmate_models.py`), and the captured networks of `benchmarks/problems`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import problem_set
from benchmarks.planning.checkmate_models import VGG16, Layer, mobilenet, training, vgg, vgg_unet
from benchmarks.results_file import read_numbers, table, write
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.bounds.classes import BOUND_CLASS
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.catalogue import CLASSICS
from lowtide.planners.classic.checkmate import Checkmate, LpRounding, RandomRounding
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import stage_program

RESULTS = "ancestors"
LAYERS: dict[str, Callable[[], tuple[Layer, ...]]] = {
    "vgg16-layers": lambda: vgg(VGG16),
    "vgg19-layers": vgg,
    "unet-layers": vgg_unet,
    "mobilenet-layers": mobilenet,
}
# The programmes take minutes on what they accept by themselves; `milp_race.py` gives the integer one its time.
PROGRAMMES = (LpRounding(most_recipes=110), RandomRounding(most_recipes=110), Checkmate(most_recipes=80))
PLANNERS: tuple[AbstractPlanner, ...] = (
    Portfolio(),
    *(p for p in CLASSICS if type(p) not in map(type, PROGRAMMES)),
    *PROGRAMMES,
)
NOTE = (
    "Overhead over keeping everything, the plan's peak beside it. Bound: the least overhead that is proved possible for any "
    "recomputation with first runs in program order. A bound in brackets is the planner's own, for its own class of schedules. "
    "From: the least budget at which the method is known to have a plan. Over the best: geometric mean of its time over "
    "that of the best plan known, at the budgets at which it has one."
)


@dataclass(frozen=True)
class Cell:
    """One planner on one graph and budget; fractions of what keeping everything takes, None where there is no plan.

    `bound` holds for all schedules, `class_bound` for those of the planner's class.
    """

    graph: str
    alpha: float
    budget_B: int
    share: float
    planner: str
    status: str
    overhead: float | None = None
    bound: float = 0.0
    class_bound: float | None = None
    peak: float | None = None
    smallest: float | None = None
    plan_s: float = 0.0

    def text(self) -> str:
        """For people."""
        if self.overhead is not None:
            found = f"{_percent(self.overhead)}, {self.peak:.0%}"
        elif self.status.startswith("refused"):
            found = "refused"
        else:
            found = "none" if self.smallest is None else f"from {self.smallest:.0%}"
        return found if self.class_bound is None else f"{found} [{_percent(self.class_bound)}]"


def _percent(fraction: float) -> str:
    return f"{100 * max(0.0, fraction):.2f} %"


def graph_of(name: str) -> Graph:
    """A graph by its name here, its first runs in the order in which the portfolio plans: one bound serves all."""
    return base_order(training(LAYERS[name](), name) if name in LAYERS else problem_set.load(name))


def names() -> list[str]:
    """All graphs, small ones first."""
    return [*LAYERS, *problem_set.captured()]


def solve(name: str, graph: Graph, alpha: float, planner: AbstractPlanner, limit_s: float) -> Cell:
    """Plans, checks, simulates."""
    program = stage_program(graph)
    floor_B, everything = op_floor(program).floor_B, program.keep_all(0)
    budget_B = floor_B + int(alpha * (everything.peak_B - floor_B))
    problem = Problem(graph, budget_B, time_limit_s=limit_s)
    cell = Cell(name, alpha, budget_B, budget_B / everything.peak_B, planner.name, "")
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


def measure(name: str, alphas: Sequence[float], limit_s: float, programme_limit_s: float) -> list[Cell]:
    """All planners at all budgets of one graph, largest budget first."""
    graph, found = graph_of(name), list[Cell]()
    for alpha in sorted(alphas, reverse=True):
        for planner in PLANNERS:
            allowed_s = programme_limit_s if planner in PROGRAMMES else limit_s
            found.append(solve(name, graph, alpha, planner, allowed_s))
        sys.stderr.write(f"{name} at {alpha}: {sum(c.plan_s for c in found):.0f} s of planning\n")
    return found


def bounds(found: Sequence[Cell]) -> dict[float, float]:
    """Per alpha the strongest bound: of any planner here or of the planning table, at this budget or a larger one."""
    planned: list[tuple[int, float]] = []
    for row in read_numbers("planning").get(found[0].graph, {}).get("rows", []):
        planned.append((row["budget_B"], row["bound_s"] / row["plain_s"] - 1.0))
    planned += [(cell.budget_B, cell.bound) for cell in found]
    budgets = {cell.alpha: cell.budget_B for cell in found}
    return {alpha: max(bound for b, bound in planned if b >= budget_B) for alpha, budget_B in budgets.items()}


def rows(found: Sequence[Cell]) -> Iterator[list[str]]:
    """The table of one graph: the bounds, then a row per planner."""
    strongest = bounds(found)
    yield ["bound", *(_percent(bound) for bound in strongest.values()), "-", "-"]
    best: dict[float, float] = {}
    for cell in found:
        if cell.overhead is not None:
            best[cell.alpha] = min(best.get(cell.alpha, cell.overhead), cell.overhead)
    for planner in PLANNERS:
        own = [cell for cell in found if cell.planner == planner.name]
        times = [(1.0 + c.overhead) / (1.0 + best[c.alpha]) for c in own if c.overhead is not None]
        mean = f"{statistics.geometric_mean(times):.3f}" if times else "-"
        yield [planner.name, *(cell.text() for cell in own), mean, f"{max(c.plan_s for c in own):.2f}"]


def tables(numbers: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A table per graph."""
    found = []
    for name in (n for n in names() if n in numbers):
        cells = [Cell(**cell) for cell in numbers[name]]
        budgets = {c.alpha: f"alpha {c.alpha:g}: {c.budget_B / 1e6:.1f} MB, {c.share:.0%} of plain" for c in cells}
        columns = ("planner", *budgets.values(), "over the best", "longest s")
        refused = dict.fromkeys(
            f"{c.planner}: {c.status.removeprefix('refused: ')}." for c in cells if "refused" in c.status
        )
        note = " ".join([NOTE if not found else "", *(("Refused.",) if refused else ()), *refused]).strip()
        found.append(table(name, columns, list(rows(cells)), 1 + len(PLANNERS), note))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and writes the tables anew after each graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=names(), default=names(), metavar="NAME")
    parser.add_argument("--alphas", nargs="*", type=float, default=[0.5, 0.25, 0.1])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds per plan")
    parser.add_argument("--programme-limit", type=float, default=60.0, help="seconds per linear or integer programme")
    parser.add_argument("--try", dest="trial", action="store_true", help="write ancestors_quick and merge nothing")
    options = parser.parse_args(arguments)
    file = f"{RESULTS}_quick" if options.trial else RESULTS
    numbers: dict[str, list[dict[str, Any]]] = {} if options.trial else dict(read_numbers(file))
    for name in options.only:
        numbers[name] = [asdict(cell) for cell in measure(name, options.alphas, options.limit, options.programme_limit)]
        path = write(file, "The classical methods and ours", tables(numbers), numbers)
    sys.stdout.write(path.read_text())


if __name__ == "__main__":
    main()
