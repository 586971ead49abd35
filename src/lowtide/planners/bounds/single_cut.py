"""A lower bound on time from one moment of the schedule, and the set to keep across it.

At the moment when the base recipe of stage t starts, exactly the earlier stages have had their first run. Let
S_v = value v is resident then, X_r = recipe r is rerun at least once afterwards. Every schedule satisfies

    minimise   sum time_r X_r
    subject to sum size_v S_v <= budget - fixed - trace_t     S_v = 1 for what stage t reads, or must be there
               S_v + X_producer(v) >= 1                       for v that a later stage needs
               S_v + X_producer(v) >= X_r                     for v that r reads

so the time of the first runs plus the minimum is a lower bound for any recomputation with first runs in program
order. The relaxation is a parametric minimum cut. Solved by HiGHS.

Memory in MiB and time in ms: raw bytes break the solver's tolerances. The knapsack row is loosened by more than
those, and only the dual bound is reported, so a rounding error cannot make the bound too high.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np

from lowtide.planners.bounds.highs import THREADS, run
from lowtide.planners.reductions.stages import StageProgram

_MIB = 2.0**20
_PS_PER_MS = 1e9
_TOLERANCE = 1e-6  # HiGHS's feasibility tolerance, absolute, per row


@dataclass(frozen=True, slots=True)
class CutSolution:
    """What the solver found for one budget.

    Arguments:
        bound_ps: proved: no schedule spends less on reruns.
        impossible: the solver says that no set fits.
        kept: per core value, whether it stays across the cut; None when no set was found.
        rerun_ps: what the set costs if every dropped value is brought back once.
        nodes: of the search tree.
    """

    bound_ps: float
    impossible: bool
    kept: frozenset[int] | None
    rerun_ps: int
    nodes: int


class SingleCut:
    """The model at one stage, built once and solved for several budgets.

    Arguments:
        program: the stage program.
        stage: the moment.
    """

    def __init__(self, program: StageProgram, stage: int) -> None:
        self.program = program
        self.stage = stage
        self.free_B = -(program.core_fixed_B + program.stages[stage].trace_B)
        self.forced: set[int] = set()
        self.values: list[int] = []  # columns S
        self.recipes: list[int] = []  # columns X: stages
        self._collect()

    def _collect(self) -> None:
        """Finds the values and recipes that matter at the cut."""
        program, stage = self.program, self.stage
        needed: list[int] = []
        for v in range(len(program.values)):
            if program.producer[v] >= stage:
                continue
            if self._is_forced(v):
                self.forced.add(v)
                self.free_B -= program.size_B[v]
            elif program.last_use[v] > stage:
                needed.append(v)
        self.needed = tuple(needed)
        seen, reached = set(needed), set[int]()
        while needed:
            recipe = program.producer[needed.pop()]
            if recipe in reached or program.stages[recipe].rerun_through <= stage:
                continue
            reached.add(recipe)
            fresh = [v for v in program.read_ids[recipe] if v not in seen and v not in self.forced]
            seen.update(fresh)
            needed.extend(fresh)
        self.values, self.recipes = sorted(seen), sorted(reached)

    def _is_forced(self, value: int) -> bool:
        program, stage = self.program, self.stage
        uses = program.uses[value]
        if stage in uses:
            return True
        if not uses or uses[-1] < stage:
            return False
        start = max((u for u in uses if u < stage), default=program.producer[value])
        return program.stages[program.producer[value]].rerun_through <= stage or start >= program.pinned_from[value]

    def solve(self, budget_B: int, *, close_ps: int = 0, nodes: int = 200, limit_s: float | None = None) -> CutSolution:
        """Solves for a budget.

        Arguments:
            close_ps: distance between solution and bound at which to stop.
            nodes: most nodes of the search tree; keeps the result independent of the machine's speed.
            limit_s: seconds; None for no limit.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        if not self.values:
            possible = self.free_B + budget_B >= 0
            return CutSolution(0.0, not possible, frozenset(self.forced) if possible else None, 0, 0)
        highs = highspy.Highs()
        highs.silent()
        options: dict[str, int | float] = {
            "threads": THREADS,
            "random_seed": 0,
            "mip_rel_gap": 1e-6,
            "mip_abs_gap": close_ps / _PS_PER_MS,
            "mip_max_nodes": nodes,
        }
        if limit_s is not None:
            options["time_limit"] = max(0.01, limit_s)
        for option, value in options.items():
            highs.setOptionValue(option, value)
        highs.passModel(self._model(budget_B))
        run(highs)
        return self._read(highs)

    def _model(self, budget_B: int) -> highspy.HighsLp:
        program = self.program
        column_of_value = {v: i for i, v in enumerate(self.values)}
        column_of_recipe = {r: len(self.values) + i for i, r in enumerate(self.recipes)}
        starts, columns, numbers = [0], list[int](), list[float]()
        lower = list[float]()

        def row(entries: list[tuple[int, float]], least: float) -> None:
            columns.extend(c for c, _ in entries)
            numbers.extend(n for _, n in entries)
            starts.append(len(columns))
            lower.append(least)

        def present(v: int) -> list[tuple[int, float]]:
            recipe = column_of_recipe.get(program.producer[v])
            return [(column_of_value[v], 1.0)] + ([] if recipe is None else [(recipe, 1.0)])

        for v in self.needed:
            row(present(v), 1.0)
        for r in self.recipes:
            for v in program.read_ids[r]:
                if v not in self.forced:
                    row([*present(v), (column_of_recipe[r], -1.0)], 0.0)
        row([(column_of_value[v], -program.size_B[v] / _MIB) for v in self.values], -self._room(budget_B))
        count = len(self.values) + len(self.recipes)
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = count, len(lower)
        model.col_cost_ = np.array(
            [0.0] * len(self.values) + [program.stages[r].rerun_ps / _PS_PER_MS for r in self.recipes]
        )
        model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
        model.row_lower_, model.row_upper_ = np.array(lower), np.full(len(lower), highspy.kHighsInf)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(starts, dtype=np.int32)
        model.a_matrix_.index_ = np.array(columns, dtype=np.int32)
        model.a_matrix_.value_ = np.array(numbers)
        # Once S is fixed the best X is whole by itself: the rows are a closure.
        model.integrality_ = [highspy.HighsVarType.kInteger] * count
        return model

    def _room(self, budget_B: int) -> float:
        """MiB for the optional values, loosened by more than the solver's rounding."""
        room = (self.free_B + budget_B) / _MIB
        total = sum(self.program.size_B[v] for v in self.values) / _MIB
        return room + 8.0 * _TOLERANCE * (1.0 + abs(room)) + 1e-12 * total

    def _read(self, highs: highspy.Highs) -> CutSolution:
        status, info = highs.getModelStatus(), highs.getInfo()
        stages = self.program.stages
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        bound_ms = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else 0.0
        impossible = status == highspy.HighsModelStatus.kInfeasible
        if impossible or status == highspy.HighsModelStatus.kNotset:
            found, bound_ms = False, 0.0
        bound_ps = max(0.0, (bound_ms * (1.0 - 1e-7) - 1e-6) * _PS_PER_MS)
        nodes = max(0, int(info.mip_node_count))
        if not found:
            return CutSolution(bound_ps, impossible, None, 0, nodes)
        solution = np.asarray(highs.getSolution().col_value)
        kept = frozenset(v for v, x in zip(self.values, solution, strict=False) if x > 0.5) | self.forced
        rerun_ps = sum(stages[r].rerun_ps for r in self._reruns(kept))
        return CutSolution(bound_ps, False, frozenset(kept), rerun_ps, nodes)

    def _reruns(self, kept: frozenset[int]) -> set[int]:
        """Recipes that have to run again if just `kept` is there: recomputed, not read off the solver."""
        found, stack = set[int](), [v for v in self.needed if v not in kept]
        while stack:
            recipe = self.program.producer[stack.pop()]
            if recipe in found:
                continue
            found.add(recipe)
            stack.extend(v for v in self.program.read_ids[recipe] if v not in kept)
        return found
