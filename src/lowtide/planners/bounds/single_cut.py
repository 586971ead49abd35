"""A lower bound on time from one cut point of the schedule, and the set to keep across it.

At the cut point when the base recipe of stage t starts, exactly the earlier stages have had their first run. Let S_v =
value v is resident then, X_r = recipe r is recomputed at least once afterwards. Every schedule satisfies

    minimise   sum time_r X_r
    subject to sum size_v S_v <= budget - fixed - trace_t     S_v = 1 for what stage t reads, or must be there
               S_v + X_producer(v) >= 1                       for v that a later stage needs
               S_v + X_producer(v) >= X_r                     for v that r reads

so the time of the first runs plus the minimum is a lower bound for any recomputation with first runs in program order.
Where the run of stage t may overwrite a value, trace_t is that of the run in place, and S_v of that value says whether
it is kept behind the run, which then takes size_v more. The relaxation is a parametric minimum cut. Solved by HiGHS;
only its dual bound is reported.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import highspy
import numpy as np

from lowtide.planners.bounds.cut import cut_at
from lowtide.planners.bounds.highs import Effort, solve
from lowtide.planners.bounds.rows import MIB, PS_PER_MS, Rows, capacity_MiB, proved_ps
from lowtide.planners.reductions.stages import StageProgram


@dataclass(frozen=True, slots=True)
class CutSolution:
    """What the solver found for one budget.

    Arguments:
        bound_ps: proved: no schedule spends less on recomputations.
        impossible: the solver says that no set fits.
        kept: core values that are kept across the cut; None when no set was found.
        recompute_ps: what the set costs if every dropped value is rematerialised once.
        nodes: of the search tree.
    """

    bound_ps: float
    impossible: bool
    kept: frozenset[int] | None
    recompute_ps: int
    nodes: int


class SingleCut:
    """The model at one stage, built once and solved for several budgets.

    Arguments:
        program: the stage program.
        stage: the cut point.
    """

    def __init__(self, program: StageProgram, stage: int) -> None:
        self.program = program
        self.stage = stage
        self.cut = cut_at(program, stage)
        self.most_B = sum(program.size_B[v] for v in self.cut.values)
        self._model, self._least = self._build()

    def solve(
        self,
        budget_B: int,
        *,
        keep: Collection[int] = (),
        close_ps: int = 0,
        nodes: int = 200,
        limit_s: float | None = None,
    ) -> CutSolution:
        """Solves for a budget.

        Arguments:
            keep: values that have to be kept across the cut; then nothing is proved.
            close_ps: distance between solution and bound at which to stop.
            nodes: most nodes of the search tree; keeps the result independent of the machine's speed.
            limit_s: seconds; None for no limit.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        cut = self.cut
        if not cut.values:
            possible = cut.free_B + budget_B >= 0
            return CutSolution(0.0, not possible, cut.forced if possible else None, 0, 0)
        least = self._least.copy()
        least[-1] = -capacity_MiB(cut.free_B + budget_B, self.most_B)
        self._model.row_lower_ = least
        lower = np.zeros(len(cut.values) + len(cut.recipes))
        lower[[place for place, v in enumerate(cut.values) if v in keep]] = 1.0
        self._model.col_lower_ = lower
        solved = solve(self._model, Effort(close_ps / PS_PER_MS, nodes, limit_s))
        bound_ps = 0.0 if keep else proved_ps(solved.bound_ms)
        if solved.columns is None:
            return CutSolution(bound_ps, solved.impossible and not keep, None, 0, solved.nodes)
        kept = cut.forced.union(v for v, x in zip(cut.values, solved.columns, strict=False) if x > 0.5)
        recompute_ps = sum(
            self.program.stages[r].recompute_ps for r in cut.recomputations(kept)
        )  # not read off the solver
        return CutSolution(bound_ps, False, kept, recompute_ps, solved.nodes)

    def _build(self) -> tuple[highspy.HighsLp, np.ndarray]:
        """The model, its knapsack last; and its rows' least values. Once S is fixed the best X is whole by itself."""
        program, cut, rows = self.program, self.cut, Rows()
        column_of_value = {v: rows.column() for v in cut.values}
        column_of_recipe = {r: rows.column(program.stages[r].recompute_ps) for r in cut.recipes}

        def present(v: int) -> list[tuple[int, float]]:
            columns = (column_of_value.get(v), column_of_recipe.get(program.producer[v]))
            return [(column, 1.0) for column in columns if column is not None]

        for v in cut.needed:
            rows.row(present(v), 1.0)
        for r in cut.recipes:
            for v in program.read_ids[r]:
                if v not in cut.forced:
                    rows.row([*present(v), (column_of_recipe[r], -1.0)])
        rows.row((column_of_value[v], -program.size_B[v] / MIB) for v in cut.values)
        model = rows.model()
        return model, np.array(model.row_lower_)
