"""Our portfolio and Checkmate's integer programme, each on one core with the same HiGHS, on the same graphs.

`python -m benchmarks.planning.milp_race [--only NAME ...] [--alphas 0.5 0.1] [--limit 600] [--at-once 2]` writes
`results/milp_race.md` and `.json`; graphs and budgets that a run leaves out keep the rows of an earlier one. The integer
programme begins from nothing, as ours does; its model has the coupling of frees to what runs and what is there that the
published one lacks (`planners/bounds/checkmate.py`). Each solve is a process that is ended at the limit and cannot have
more than 8 GiB. The graphs are layers as Checkmate models them, and captured networks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from benchmarks import problem_set
from benchmarks.planning.checkmate_models import VGG16, Layer, mobilenet, training, vgg, vgg_unet
from benchmarks.planning.milp_solve import solve
from benchmarks.results_file import read_numbers, table, write
from benchmarks.runner import Limits, run
from lowtide.ir.graph import Graph
from lowtide.ir.text import load_graph, save_graph
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import stage_program

RESULTS = "milp_race"
LAYERS: dict[str, Callable[[], tuple[Layer, ...]]] = {
    "vgg16-layers": lambda: vgg(VGG16),
    "vgg19-layers": vgg,
    "unet-layers": vgg_unet,
    "mobilenet-layers": mobilenet,
}
CAPTURED = ("vgg16", "vgg19", "unet")
SHALLOW = {"gpt2-1-layer": 1, "gpt2-3-layers": 3}
NAMES = (*LAYERS, *CAPTURED, *SHALLOW)
SOLVERS = ("portfolio", "checkmate")
MOST_B = 8 << 30
_NO_MEMORY = ("MemoryError", "bad_alloc")
_GRACE_S = 15.0  # a solver may look at the clock rarely
COLUMNS = (
    "graph", "recipes", "alpha", "of plain", "solver", "first plan s", "within 1 % of the best plan s",
    "within 1 % of the bound s", "overhead", "proved by itself", "seconds", "how it ended",
)  # fmt: skip
NOTE = (
    "One core each. Alpha: of the way from the proved floor to what keeping everything takes. Overhead: over keeping "
    "everything, of the last plan. The best plan is the better of the two; the bound is the portfolio's, for any "
    "recomputation with first runs in program order. Proved by itself: the solver's own bound as an overhead; that of "
    "the integer programme holds for its own class of schedules only, in which each recipe runs at most once between two "
    "first runs. Seconds include building the model. Budgets at alpha 0.1 were raced for the smaller graphs only: on most of "
    "the larger ones the integer programme takes minutes, or all of its limit, at 0.5 already."
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One graph at one budget."""

    name: str
    file: Path
    alpha: float
    budget_B: int
    plain_B: int
    least_s: float
    recipes: int

    @property
    def key(self) -> str:
        """Under which its rows are found again."""
        return f"{self.name} {self.alpha}"


def graph_of(name: str) -> Graph:
    """A graph by its name here."""
    if name in LAYERS:
        return training(LAYERS[name](), name)
    if name in CAPTURED:
        return problem_set.load(name)
    from benchmarks.planning.capture_problems import capture
    from benchmarks.problem_models import _gpt

    return capture(_gpt(name, 8, 1024, SHALLOW[name], 768, 12))


def tasks(name: str, alphas: Sequence[float], folder: Path) -> list[Task]:
    """The budgets of one graph, which is written to a file with its first runs in the order of the portfolio's plans."""
    save_graph(base_order(graph_of(name)), folder / f"{name}.json.gz")
    graph = load_graph(folder / f"{name}.json.gz")
    program = stage_program(graph)
    everything, floor_B = program.keep_all(0), op_floor(program).floor_B
    return [
        Task(
            name,
            folder / f"{name}.json.gz",
            alpha,
            floor_B + int(alpha * (everything.peak_B - floor_B)),
            everything.peak_B,
            everything.time_ps * 1e-12,
            len(graph.program),
        )
        for alpha in alphas
    ]


def race(task: Task, solver: str, limit_s: float, cores: Queue[int]) -> Row:
    """Runs one solver on a core that is free and reads its events; ends it when it passes the limit.

    Raises:
        RuntimeError: if it failed, for want of something else than memory.
    """
    core = cores.get()
    try:
        return _race(task, solver, limit_s, core)
    finally:
        cores.put(core)


def _race(task: Task, solver: str, limit_s: float, core: int) -> Row:
    limits = Limits(elapsed_s=limit_s + _GRACE_S, address_B=MOST_B, core=core)
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    arguments = (solver, str(task.file), task.budget_B, limit_s)
    ended = run(solve, *arguments, limits=limits, environment=one)
    said = f"{ended.failure} {ended.errors}"
    if ended.code not in (0, -signal.SIGKILL) and not any(word in said for word in _NO_MEMORY):
        raise RuntimeError(f"{arguments}: {said}")
    return {"events": ended.rows, "code": ended.code, "seconds": ended.elapsed_s, "limit_s": limit_s}


def rows(task: Task, found: dict[str, Row]) -> list[list[str]]:
    """Both solvers' rows."""
    times = [e["time_s"] for run in found.values() for e in run["events"] if e.get("time_s")]
    best_s = min(times, default=None)
    bound_s = max((e["bound_s"] for e in found["portfolio"]["events"] if "bound_s" in e), default=task.least_s)
    table = []
    for solver in SOLVERS:
        events, code, limit_s = (found[solver][k] for k in ("events", "code", "limit_s"))
        plans = [(e["at_s"], e["time_s"]) for e in events if e.get("time_s")]
        bounds = [e["bound_s"] for e in events if "bound_s" in e]
        end = events[-1] if events and events[-1].get("end") else None
        none = f"none in {limit_s:.0f}"

        def first(most_s: float | None, plans: list[tuple[float, float]] = plans, none: str = none) -> str:
            reached = [at_s for at_s, time_s in plans if most_s is not None and time_s <= most_s]
            return f"{reached[0]:.3g}" if reached else none

        table.append([
            task.name, str(task.recipes), f"{task.alpha}", f"{task.budget_B / task.plain_B:.0%}", solver,
            first(float("inf")), first(best_s and 1.01 * best_s), first(1.01 * bound_s),
            _overhead(min((t for _, t in plans), default=None), task), _overhead(max(bounds, default=None), task),
            f"{end['at_s'] if end else found[solver]['seconds']:.3g}", _ending(events, code),
        ])  # fmt: skip
    return table


def _overhead(time_s: float | None, task: Task) -> str:
    return "-" if time_s is None else f"{100 * max(0.0, time_s / task.least_s - 1.0):.2f} %"


def _ending(events: Sequence[Row], code: int) -> str:
    """How a solve ended, in words."""
    size = next((e["size"] for e in events if "size" in e), "no model")
    end = events[-1] if events and events[-1].get("end") else None
    if end is not None:
        over = f", {end['over_B']} B over" if end["over_B"] else ""
        return f"{end['status']}{over} ({size})"
    return f"{'killed at the limit' if code == -signal.SIGKILL else f'failed within 8 GiB ({code})'} ({size})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Races, and writes the table anew after each solve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--alphas", nargs="*", type=float, default=[0.5, 0.1])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per solve")
    parser.add_argument("--at-once", type=int, default=1, help="solves at a time, a core each")
    parser.add_argument("--try", dest="trial", action="store_true", help="write milp_race_quick and merge nothing")
    options = parser.parse_args(arguments)
    name = f"{RESULTS}_quick" if options.trial else RESULTS
    numbers: dict[str, list[list[str]]] = {} if options.trial else dict(read_numbers(name))

    def save() -> None:
        shown = [
            row for n in NAMES for k in sorted(numbers, reverse=True) if k.split(" ")[0] == n for row in numbers[k]
        ]
        tables = [table("Portfolio and integer programme", COLUMNS, shown, 2 * len(numbers), NOTE)]
        write(name, "Checkmate's integer programme and ours", tables, numbers)

    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[: options.at_once]:
        cores.put(core)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        wanted = [task for n in options.only for task in tasks(n, options.alphas, Path(folder))]
        runs = {
            task.key: {solver: pool.submit(race, task, solver, options.limit, cores) for solver in SOLVERS}
            for task in wanted
        }
        for task in wanted:
            found = {solver: run.result() for solver, run in runs[task.key].items()}
            numbers[task.key] = rows(task, found)
            sys.stderr.writelines(" | ".join(row) + "\n" for row in numbers[task.key])
            save()


if __name__ == "__main__":
    main()
