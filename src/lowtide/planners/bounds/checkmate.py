"""Checkmate's model: per stage what is recomputed, kept and freed, and the bound of its relaxation.

P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020, section 4, on
values and recipes instead of layers. Per stage t

    R[t, k]     recipe k is recomputed       S[t, v]     value v is there when the stage begins
    A[t, v]     a recomputation makes v (= R if it makes nothing else)
    F[t, v, k]  v is freed once k ran            U[t, k]     bytes when k's turn comes

    minimise   sum time_k R[t, k]
    subject to S[t, v] + A[t, v] >= R[t, k]  for v that k reads, >= 1 for v that stage t reads
               S[t + 1, v] <= S[t, v] + A[t, v]         A[t, v] <= R[t, producer of v]        S + A <= 1
               F[t, v, k] <= R[t, k]                    sum_k F[t, v, k] <= S[t, v] + A[t, v]
               F[t, v, k] + S[t + 1, v] <= 1            F[t, v, k] + R[t, j] <= 1  for later readers j
               U[t, first] = sum size S[t, v]           U[next] = U[k] + sum size A - sum size F
               U[t, k] + trace_k R[t, k] <= budget      U[t, last] + trace_t <= budget

The rows on F are one by one instead of summed up, which makes the relaxation stronger, and F is bound to what is
resident and runs: without that a relaxation frees what it does not hold. A recipe has its traced bytes, a random one
its generator's state, a value of its own that only its replays read; rows and columns that cannot matter are left out.

Class of the bound: `RESIDENCE_CLASS`. It does not hold for schedules that recompute a recipe twice between two first
runs.

Bytes are counted in budget / 1024, time in ms; the budget is loosened by more than the solver's tolerances.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from lowtide._core import NEVER
from lowtide.planners.bounds.milp import PS_PER_MS, THREADS, Entry, Milp, SilentHighs, run
from lowtide.planners.reductions.residence import Residence, last_needs, may_recompute
from lowtide.planners.reductions.stages import StageProgram

_UNITS = 1024.0  # of the budget
_LOOSE = 8e-6 * _UNITS  # HiGHS's tolerance is 1e-6 per row, absolute


@dataclass(frozen=True, slots=True)
class CheckmateSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule of the class spends less on recomputations.
        impossible: the solver says that no schedule of the class fits.
        there: per stage, how much of each value is there when it begins, 0 to 1; None when nothing was found.
        nodes: of the search tree.
    """

    bound_ps: float
    impossible: bool
    there: tuple[dict[int, float], ...] | None
    nodes: int = 0


class CheckmateModel:
    """The model of a program, for one budget.

    Arguments:
        program: reduced.
        budget_B: of the problem, persistent values included.
    """

    def __init__(self, program: StageProgram, budget_B: int) -> None:
        self.program = program
        self.unit_B = max(1.0, budget_B / _UNITS)
        self.capacity = (budget_B - program.core_fixed_B) / self.unit_B + _LOOSE
        self.milp = Milp()
        self._facts()
        self._choices()
        for t in range(len(program.stages)):
            self._reads(t)
            self._residency(t)
            self._frees(t)
            self._memory(t)

    def _facts(self) -> None:
        """Values and generator states in one numbering, who reads them, and how long they can be of use."""
        program, count = self.program, len(self.program.values)
        self.size = [b / self.unit_B for b in program.size_B]
        self.producer = list(program.producer)
        self.need = list(last_needs(program))
        self.readers: list[list[int]] = [[] for _ in range(count)]
        for t, reads in enumerate(program.read_ids):
            for v in reads:
                self.readers[v].append(t)
        self.outputs: list[list[int]] = [[] for _ in program.stages]
        for v, t in enumerate(program.producer):
            self.outputs[t].append(v)
        self.again_reads = [list(reads) for reads in program.read_ids]
        self.state_of: dict[int, int] = {}  # stage of a random recipe -> the number of its state
        for t, stage in enumerate(program.stages):
            if stage.recipe in program.replays:
                v = self.state_of[t] = len(self.size)
                self.size.append(program.graph.values[program.replays[stage.recipe].state].size_B / self.unit_B)
                self.producer.append(t)
                self.need.append(max((self.need[u] for u in self.outputs[t]), default=-1))
                self.readers.append([t])
                self.again_reads[t].append(v)

    def _choices(self) -> None:
        """The columns R, S, A: only those that can matter."""
        program, stages = self.program, self.program.stages
        pinned = [*program.pinned_from, *[NEVER] * len(self.state_of)]
        lost = [*program.lost_from, *[NEVER] * len(self.state_of)]
        useful = [max((self.need[v] for v in outputs), default=-1) for outputs in self.outputs]
        self.again: list[list[int]] = []
        self.r: dict[tuple[int, int], int] = {}
        self.a: dict[tuple[int, int], int] = {}
        self.s: dict[tuple[int, int], int] = {}
        for t in range(len(stages)):
            self.again.append([k for k in range(t) if useful[k] >= t and may_recompute(program, k, t)])
            for k in self.again[t]:
                self.r[t, k] = self.milp.column(stages[k].recompute_ps / PS_PER_MS)
                for v in self.outputs[k]:
                    if self.need[v] >= t:
                        self.a[t, v] = self.r[t, k] if len(self.outputs[k]) == 1 else self.milp.column()
        for v, first in enumerate(self.producer):
            for t in range(first + 1, self.need[v] + 1):
                low, high = float(t > pinned[v]), float(t != lost[v] + 1)
                self.s[t, v] = self.milp.column(0.0, low, high)

    def _present(self, t: int, v: int) -> list[Entry]:
        """S + A: whether v is there during the recomputations of stage t."""
        return [(column[t, v], 1.0) for column in (self.s, self.a) if (t, v) in column]

    def _reads(self, t: int) -> None:
        for v in self.program.read_ids[t]:
            self.milp.row(self._present(t, v), 1.0)
        for k in self.again[t]:
            for v in self.again_reads[k]:
                self.milp.row([*self._present(t, v), (self.r[t, k], -1.0)])
            for v in self.outputs[k]:
                if (t, v) in self.a and self.a[t, v] != self.r[t, k]:
                    self.milp.row([(self.r[t, k], 1.0), (self.a[t, v], -1.0)])

    def _residency(self, t: int) -> None:
        for v, first in enumerate(self.producer):
            if (t, v) in self.a and (t, v) in self.s:
                self.milp.at_most(self._present(t, v), 1.0)
            if first < t and (t + 1, v) in self.s:
                self.milp.row([*self._present(t, v), (self.s[t + 1, v], -1.0)])

    def _frees(self, t: int) -> None:
        self.f: dict[tuple[int, int, int], int] = getattr(self, "f", {})
        again, base = set(self.again[t]), set(self.program.read_ids[t])
        for v in {v for k in again for v in self.again_reads[k]} - base:
            readers = [k for k in self.readers[v] if k in again]
            for place, k in enumerate(readers):
                free = self.f[t, v, k] = self.milp.column()
                self.milp.row([(self.r[t, k], 1.0), (free, -1.0)])
                if (t + 1, v) in self.s:
                    self.milp.at_most([(self.s[t + 1, v], 1.0), (free, 1.0)], 1.0)
                for j in readers[place + 1 :]:
                    self.milp.at_most([(self.r[t, j], 1.0), (free, 1.0)], 1.0)
            self.milp.row([*self._present(t, v), *((self.f[t, v, k], -1.0) for k in readers)])

    def _memory(self, t: int) -> None:
        stages = self.program.stages
        self.u: dict[tuple[int, int], int] = getattr(self, "u", {})
        start = [(self.s[t, v], self.size[v]) for v in range(len(self.size)) if (t, v) in self.s]
        for k in (*self.again[t], t):
            live = self.u[t, k] = self.milp.column(0.0, 0.0, max(0.0, self.capacity), whole=False)
            self.milp.row([(live, 1.0), *((c, -n) for c, n in start)], 0.0, 0.0)
            state = self.state_of.get(k)
            if k == t:
                saved = (
                    [] if state is None or (t + 1, state) not in self.s else [(self.s[t + 1, state], self.size[state])]
                )
                self.milp.at_most([(live, 1.0), *saved], self.capacity - stages[t].trace_B / self.unit_B)
                return
            inner = stages[k].recompute_trace_B / self.unit_B + (0.0 if state is None else self.size[state])
            self.milp.at_most([(live, 1.0), (self.r[t, k], inner)], self.capacity)
            start = [(live, 1.0)]
            start += [(self.a[t, v], self.size[v]) for v in self.outputs[k] if (t, v) in self.a]
            start += [(self.f[t, v, k], -self.size[v]) for v in self.again_reads[k] if (t, v, k) in self.f]

    def relax(self, limit_s: float | None = None) -> CheckmateSolution:
        """Solves the relaxation.

        Arguments:
            limit_s: seconds; None for no limit. Without an optimum there is no bound.

        Raises:
            KeyboardInterrupt: on Ctrl-C.
        """
        highs = self._solver(limit_s)
        highs.passModel(self.milp.model(relaxed=True))
        run(highs)
        status = highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return CheckmateSolution(0.0, True, None)
        if status != highspy.HighsModelStatus.kOptimal:
            return CheckmateSolution(0.0, False, None)
        return self._solution(highs, highs.getInfo().objective_function_value)

    def solve(
        self,
        *,
        nodes: int,
        limit_s: float | None = None,
        close: float = 1e-6,
        start: Residence | None = None,
        told: Callable[[float, float], None] | None = None,
    ) -> CheckmateSolution:
        """Searches for the optimum.

        Arguments:
            nodes: most nodes of the search tree; keeps the result independent of the machine's speed.
            close: relative distance of solution and bound at which to stop.
            start: a plan to begin from.
            told: called now and then, from the solver's thread, with the time of recomputations in the best plan so
                far, infinite before there is one, and with the bound.

        Raises:
            KeyboardInterrupt: on Ctrl-C.
        """
        highs = self._solver(limit_s)
        highs.setOptionValue("mip_max_nodes", nodes)
        highs.setOptionValue("mip_rel_gap", close)
        if told is not None:

            def tell(event: highspy.HighsCallbackEvent) -> None:
                told(event.data_out.mip_primal_bound * PS_PER_MS, self._careful_ps(event.data_out.mip_dual_bound))

            highs.cbMipImprovingSolution.subscribe(tell)
            highs.cbMipInterrupt.subscribe(tell)
        highs.passModel(self.milp.model())
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = self.values(start).tolist()
            highs.setSolution(solution)
        run(highs)
        info, status = highs.getInfo(), highs.getModelStatus()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kNotset):
            return CheckmateSolution(0.0, status == highspy.HighsModelStatus.kInfeasible, None)
        bound_ms = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else 0.0
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return CheckmateSolution(self._careful_ps(bound_ms), False, None, int(info.mip_node_count))
        return self._solution(highs, bound_ms, int(info.mip_node_count))

    def values(self, plan: Residence) -> NDArray[np.float64]:
        """What the columns are for a plan of the class. O(columns)."""
        values = np.zeros(self.milp.columns)
        first = {v: t for t, v in self.state_of.items()}
        last_replay = dict.fromkeys(first, -1)
        for t, again in enumerate(plan.recompute_lists):
            for k in again:
                values[self.r[t, k]] = 1.0
                if k in self.state_of:
                    last_replay[self.state_of[k]] = t
        for v, spans in enumerate(plan.span_lists):
            for t, _ in spans:
                if t > self.producer[v]:
                    values[self.a[t, v]] = 1.0
        for (t, v), column in self.s.items():
            values[column] = float(t <= last_replay[v]) if v in first else float(v in plan.there[t])
        for (t, v, k), column in self.f.items():
            gone = (t + 1, v) not in self.s or values[self.s[t + 1, v]] == 0.0
            later = any(j > k for j in plan.recompute_lists[t] if v in self.again_reads[j])
            values[column] = float(k in plan.recompute_lists[t] and gone and not later)
        for t in range(len(self.again)):
            live = sum(self.size[v] for v in range(len(self.size)) if (t, v) in self.s and values[self.s[t, v]])
            for k in (*self.again[t], t):
                values[self.u[t, k]] = live
                live += sum(self.size[v] for v in self.outputs[k] if (t, v) in self.a and values[self.a[t, v]])
                live -= sum(
                    self.size[v] for v in self.again_reads[k] if (t, v, k) in self.f and values[self.f[t, v, k]]
                )
        return values

    def _solver(self, limit_s: float | None) -> highspy.Highs:
        highs = SilentHighs()
        highs.setOptionValue("threads", THREADS)
        highs.setOptionValue("random_seed", 0)
        if limit_s is not None:
            highs.setOptionValue("time_limit", max(0.01, limit_s))
        return highs

    def _solution(self, highs: highspy.Highs, bound_ms: float, nodes: int = 0) -> CheckmateSolution:
        found: Sequence[float] = highs.getSolution().col_value
        there: list[dict[int, float]] = [{} for _ in self.program.stages]
        for (t, v), column in self.s.items():
            if v < len(self.program.values) and found[column] > 0.0:
                there[t][v] = found[column]
        return CheckmateSolution(self._careful_ps(bound_ms), False, tuple(there), nodes)

    @staticmethod
    def _careful_ps(bound_ms: float) -> float:
        """The bound, less what the solver's rounding may have added."""
        return max(0.0, (bound_ms * (1.0 - 1e-6) - 1e-6) * PS_PER_MS)


def relaxation_bound(program: StageProgram, budget_B: int, limit_s: float | None = None) -> CheckmateSolution:
    """Bounds the time of recomputations from below, for schedules of `RESIDENCE_CLASS`. O(stages * reads) rows.

    Arguments:
        budget_B: of the problem.
        limit_s: seconds; None for no limit.
    """
    return CheckmateModel(program, budget_B).relax(limit_s)
