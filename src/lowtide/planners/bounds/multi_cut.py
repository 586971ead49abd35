"""A lower bound on time from several cut points of the schedule at once, and what to keep across each.

At cut point k (see `single_cut.py`) value v is resident or not, S_kv; between cut point k and the next one recipe r is
recomputed at least once or not, X_kr. Every schedule satisfies

    minimise   sum time_r X_kr
    subject to what `single_cut.py` asks of S_k, with X_k for what runs or is read before the next cut point,
               S_{k+1,v} <= S_kv + X_k,producer(v)            for v that had been made by cut point k
               the single cut's rows once more for S_k and Y_k,
               X_jr <= Y_kr for j >= k,   Y_kr <= sum_{j >= k} X_jr

Y_k, "recomputed at some time after cut point k", is what makes the relaxation at least as strong as each single cut's:
without it one fraction of a value would serve every stretch between two cut points. The class is the single cut's.

Values that weigh next to nothing are taken to weigh nothing.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.bounds.cut import Cut, cut_at
from lowtide.planners.bounds.highs import Effort, solve
from lowtide.planners.bounds.rows import MIB, Rows, capacity_MiB, proved_ps
from lowtide.planners.reductions.stages import StageProgram

_WEIGHTLESS = 5e-4  # of the budget, all such values together


@dataclass(frozen=True, slots=True)
class MultiCutSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule spends less on recomputations.
        impossible: the solver says that nothing fits.
        whole: whether the search of the solver's tree was completed.
        kept: per cut the values kept across it; None when nothing was found.
        again: per cut the recipes that are recomputed before the next one.
    """

    bound_ps: float
    impossible: bool
    whole: bool
    kept: tuple[frozenset[int], ...] | None = None
    again: tuple[frozenset[int], ...] | None = None


class MultiCut:
    """The model for some stages and one budget.

    Arguments:
        program: the stage program.
        stages: the cut points.
        budget_B: bytes for everything.
    """

    def __init__(self, program: StageProgram, stages: Sequence[int], budget_B: int) -> None:
        self.program = program
        weightless = _weightless(program, budget_B)
        self.cuts = _cuts(program, stages, weightless)
        self._rows = Rows()
        self._resident = [{v: self._rows.column() for v in cut.values} for cut in self.cuts]
        self._again = [{r: self._rows.column(program.stages[r].recompute_ps) for r in cut.recipes} for cut in self.cuts]
        last = len(self.cuts) - 1
        for k, cut in enumerate(self.cuts):
            end = len(program.stages) if k == last else self.cuts[k + 1].stage
            self._add_stretch(k, cut, end)
            if k < last:
                self._add_link(k)
                self._add_afterwards(k, cut)
            self._rows.row(
                ((self._resident[k][v], -program.size_B[v] / MIB) for v in cut.values),
                -capacity_MiB(cut.free_B + budget_B, sum(program.size_B[v] for v in cut.values)),
            )

    @property
    def columns(self) -> int:
        """The size of the model."""
        return self._rows.columns

    def solve(self, effort: Effort) -> MultiCutSolution:
        """Solves.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        if not self.columns:
            return MultiCutSolution(0.0, False, True)
        solved = solve(self._rows.model(), effort)
        bound_ps = proved_ps(solved.bound_ms)
        x = solved.columns
        if x is None:
            return MultiCutSolution(bound_ps, solved.impossible, solved.whole)
        kept = tuple(
            cut.forced.union(v for v, c in resident.items() if x[c] > 0.5)
            for cut, resident in zip(self.cuts, self._resident, strict=True)
        )
        again = tuple(frozenset(r for r, c in again.items() if x[c] > 0.5) for again in self._again)
        return MultiCutSolution(bound_ps, False, solved.whole, kept, again)

    def taus(self, solution: MultiCutSolution) -> NDArray[np.int32]:
        """A retention that follows the solution as far as one number per gap can. O(values * cuts)."""
        assert solution.kept is not None
        assert solution.again is not None
        program, core = self.program, self.program.core
        taus: NDArray[np.int32] = program.keep_all(0).taus
        for gap, cut_points in self._cut_points().items():
            value = int(core.gap_value[gap])
            dropped = []
            for k in cut_points:
                if value in solution.kept[k]:
                    break
                dropped.append(k)
            if not dropped or not core.is_free(gap):
                continue
            start, stage = core.gap_start(gap), self.cuts[dropped[-1]].stage
            passing = any(
                program.producer[value] in solution.again[k]
                for k in range(dropped[-1])
                if self.cuts[k + 1].stage > start
            )
            # Rematerialised for a reader in between, and dropped again: kept only from the last such cut on.
            taus[gap] = max(start, stage) + 1 if passing else start + 1
        return taus

    def _cut_points(self) -> dict[int, list[int]]:
        """Per gap the cuts that lie in it and at which its value may be there, in order."""
        cut_points: dict[int, list[int]] = {}
        for k, cut in enumerate(self.cuts):
            for v in (*cut.values, *cut.absent):
                cut_points.setdefault(cut.gap(v), []).append(k)
        return cut_points

    def _add_stretch(self, k: int, cut: Cut, end: int) -> None:
        """What the recipes read that run between a cut and the next one."""
        program, rows = self.program, self._rows
        read = {v for t in range(cut.stage + 1, end) for v in program.read_ids[t] if program.producer[v] < cut.stage}
        for v in sorted(read - cut.forced):
            rows.row(self._present(k, v), 1.0)
        for r in cut.recipes:
            for v in program.read_ids[r]:
                if v not in cut.forced:
                    rows.row([*self._present(k, v), (self._again[k][r], -1.0)])

    def _add_link(self, k: int) -> None:
        """What is there at the next cut was there at this one, or came in between."""
        cut, later = self.cuts[k], self.cuts[k + 1]
        if later.taken is not None and self.program.producer[later.taken] < cut.stage and later.taken not in cut.forced:
            self._rows.row(self._present(k, later.taken), 1.0)  # it is read, whether it is kept behind that or not
        for v in (*later.values, *sorted(later.forced)):
            if self.program.producer[v] >= cut.stage or v in cut.forced:
                continue
            column = self._resident[k + 1].get(v)
            entries = self._present(k, v)
            if column is not None:
                self._rows.row([*entries, (column, -1.0)])
            elif entries:
                self._rows.row(entries, 1.0)

    def _add_afterwards(self, k: int, cut: Cut) -> None:
        """The single cut's rows for what is recomputed at any later time."""
        program, rows, later = self.program, self._rows, self._again[k:]
        afterwards = {r: rows.column() for r in cut.recipes}
        for r, column in afterwards.items():
            stretches = [again[r] for again in later if r in again]
            rows.row([*((c, 1.0) for c in stretches), (column, -1.0)])
            for c in stretches:
                rows.row([(column, 1.0), (c, -1.0)])

        def present(v: int) -> list[tuple[int, float]]:
            columns = (self._resident[k].get(v), afterwards.get(program.producer[v]))
            return [(column, 1.0) for column in columns if column is not None]

        for v in cut.needed:
            rows.row(present(v), 1.0)
        for r, column in afterwards.items():
            for v in program.read_ids[r]:
                if v not in cut.forced:
                    rows.row([*present(v), (column, -1.0)])

    def _present(self, k: int, v: int) -> list[tuple[int, float]]:
        """Resident at a cut, or rematerialised before the next one."""
        resident, again = self._resident[k].get(v), self._again[k].get(self.program.producer[v])
        return [(c, 1.0) for c in (resident, again) if c is not None]


def _cuts(program: StageProgram, stages: Sequence[int], weightless: Collection[int]) -> tuple[Cut, ...]:
    """The cuts in order. Whatever a later cut speaks of, the earlier ones do, so that no link says more than is so."""
    cut_points = sorted(set(stages))
    cuts: list[Cut] = []
    for k in reversed(range(len(cut_points))):
        later = cuts[-1].recipes if cuts else ()
        cuts.append(cut_at(program, cut_points[k], weightless, later, cut_points[k - 1] if k else 0))
    return tuple(reversed(cuts))


def _weightless(program: StageProgram, budget_B: int) -> frozenset[int]:
    """The lightest values, as many as come to next to nothing."""
    order = np.argsort(np.array(program.size_B, dtype=np.int64), kind="stable")
    total_B = np.cumsum(np.array(program.size_B, dtype=np.int64)[order])
    return frozenset(int(v) for v in order[: int(np.searchsorted(total_B, _WEIGHTLESS * budget_B, side="right"))])
