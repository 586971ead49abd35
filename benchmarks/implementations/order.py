"""Joint choice of schedule and implementations against one after the other, in either order.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.implementations.rows import LEVELS, SCHEDULE_ONLY, Case, Point, case, planned, summary
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.results_file import table
from lowtide.errors import PlanError
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import IN_PLACE
from lowtide.planners.implementations.choice import choose
from lowtide.planners.implementations.menu import restricted
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import StageProgram, stage_program
from lowtide.planners.start import read_back

NETWORKS = ("resnet50", "gpt2", "unet")
PERCENTS = (50, 33)
_MENU = LEVELS[-1]
_ROUNDS = 2
_KEYS = tuple(f"{network}, {p} %" for network in NETWORKS for p in PERCENTS)
STRATEGIES = (
    "schedule only",
    "implementations first, then the schedule",
    "schedule first, then implementations",
    "jointly",
)
NOTE = (
    "Level reassociated. Implementations first: group by group the option with which keeping everything takes the lowest peak, "
    "then the fewest bytes over the step; then the portfolio plans the program that results. Schedule first: the portfolio plans "
    "the program as it is; then group by group the option that makes that plan fastest within the budget, where every value is "
    f"dropped and kept as before, {_ROUNDS} rounds. Overhead over keeping everything with the program's own implementations."
)


def settled(graph: Graph, choice: dict[int, int]) -> Graph:
    """The program of a choice, with nothing left to choose: what only other options have is gone, and ids close up."""
    chosen = choose(graph, choice)
    others = {r for g in chosen.groups for o in g.options[1:] for r in o.recipes}
    others -= {r for g in chosen.groups for r in g.options[0].recipes}
    kinds = {g.kind for g in chosen.groups} - {IN_PLACE}
    return restricted(chosen, Numerics.LOSSY, kinds, others)


def thriftiest(graph: Graph) -> dict[int, int]:
    """Per group the option with which keeping everything takes the fewest bytes, groups one after another.

    Returns: group -> option. O(options * graph).
    """

    def bytes_of(program: StageProgram) -> tuple[int, int]:
        live_B = program.keep_all(0).live_B()
        return int(live_B.max()), int(live_B.sum())

    return _descend(graph, bytes_of, 1)


def fastest(graph: Graph, retention_of: Callable[[StageProgram], Any], budget_B: int) -> dict[int, int]:
    """Per group the option that is fastest under a schedule that stays, groups one after another.

    Arguments:
        retention_of: when a program drops what.

    Returns: group -> option. O(options * graph).
    """

    def seconds_of(program: StageProgram) -> tuple[float, int]:
        state = program.keep_all(budget_B - program.reserve_B)
        if not (state.assign(retention_of(program)) and state.fits):
            return np.inf, 0
        return float(state.time_ps), int(state.peak_B)

    return _descend(graph, seconds_of, _ROUNDS)


def _descend(graph: Graph, cost: Callable[[StageProgram], tuple[float, int]], rounds: int) -> dict[int, int]:
    choice: dict[int, int] = {}
    best = cost(stage_program(choose(graph, choice)))
    for _ in range(rounds):
        before = best
        for trial in _trials(graph, choice):
            try:
                program = stage_program(choose(graph, trial))
            except PlanError:  # what its options read goes round in a circle
                continue
            if (found := cost(program)) < best:
                best = found
                choice.clear()
                choice.update(trial)
        if best == before:
            break
    return choice


def _trials(graph: Graph, choice: dict[int, int]) -> Iterator[dict[int, int]]:
    """The choice with one group changed, for every group and option; what was taken meanwhile stays."""
    for g, group in enumerate(graph.groups):
        for option in range(len(group.options)):
            if option != choice.get(g, 0):
                yield {**choice, g: option}


def measure(key: str, effort: Effort) -> list[Row]:
    """All four ways for one network at one budget."""
    network, label = key.split(", ")
    subject, alone = case(network, _MENU), base_order(case(network, SCHEDULE_ONLY).graph)
    graph = replace(subject.graph, program=alone.program)
    budget_B = subject.plain_B * int(label.split()[0]) // 100
    points: dict[str, Point] = {}

    def plan(strategy: str, of: Graph) -> Any:
        asked = Case(network, _MENU, of, subject.plain_B, subject.plain_s)
        points[strategy], schedule = planned(asked, label, budget_B, effort.limit_s)
        say(f"{key}, {strategy}: {summary(points[strategy])}")
        return schedule

    plain = plan(STRATEGIES[0], alone)
    plan(STRATEGIES[1], settled(graph, thriftiest(graph)))
    after = None
    if plain is not None:
        choice = fastest(graph, lambda program: read_back(program, plain), budget_B)
        program = stage_program(choose(graph, choice))
        state = program.keep_all(budget_B - program.reserve_B)
        if state.assign(read_back(program, plain)):
            after = state.time_ps * 1e-12 / subject.plain_s - 1.0
    plan(STRATEGIES[3], subject.graph)
    overheads = {s: points[s].overhead for s in points} | {STRATEGIES[2]: after}
    bound = points[STRATEGIES[3]].bound_overhead
    return [{"network": network, "label": label, "overheads": overheads, "bound": bound}]


def tables(found: Found) -> list[str]:
    """One row per network and budget."""
    rows = rows_of(found, _KEYS)
    lines = [
        [row["network"], row["label"], *(percent(row["overheads"][s]) for s in STRATEGIES), percent(row["bound"])]
        for row in rows
    ]
    columns = ("network", "of plain", *STRATEGIES, "bound, jointly")
    return [table("Jointly and one after the other", columns, lines, len(rows), NOTE)] if rows else []


ORDER_PART = Part("order", _KEYS, measure, tables)
