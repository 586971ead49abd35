"""A lower bound on time for every choice of options where values may be offloaded as well, from one cut point.

The rows of `joint_cut.py` for what is there and what is recomputed, with F_v = value v is not there, and what brings it
next is a fetch; and, with A and Z the seconds before and from the cut point, as in `offload_cut.py`,

    minimise   A + Z
    subject to A + Z >= first runs, by the options chosen, + sum time_r X_r
               A >= what runs before the cut point whatever is chosen, sum send_v F_v
               Z >= what runs after it whatever is chosen, sum fetch_v F_v

Movable persistent values are taken to be on the host and to come for nothing.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.ir.machine import Machine
from lowtide.planners.bounds.cut_points import CutPoint, scene_at
from lowtide.planners.bounds.highs import Effort, solve
from lowtide.planners.bounds.joint_cut import weightless
from lowtide.planners.bounds.offload_cut import TIE, link_ms_per_B
from lowtide.planners.bounds.rows import MIB, PS_PER_MS, Rows, capacity_MiB, proved_ps
from lowtide.planners.implementations.candidates import ALWAYS, Candidate, Candidates, Owner
from lowtide.planners.implementations.dominance import reduced

Entry = tuple[int, float]


@dataclass(frozen=True, slots=True)
class JointOffloadSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule of any choice takes less.
        choice: group -> option; None when nothing was found.
    """

    bound_ps: float
    impossible: bool
    choice: dict[int, int] | None = None


class JointOffloadCut:
    """The model for a cut point and a machine.

    Arguments:
        candidates: of the graph.
        budget_B: the largest for which it is solved.
    """

    def __init__(self, candidates: Candidates, cut_point: CutPoint, budget_B: int, machine: Machine) -> None:
        self.candidates, self.settled = reduced(candidates)
        self.rows = Rows()
        self.scene = scene_at(self.candidates, cut_point, None, weightless(self.candidates, budget_B))
        self._spent: list[Entry] = []  # ms of first runs and recomputations beyond the least
        self.choice = self._options()
        send_ms, fetch_ms = link_ms_per_B(machine)
        size_B = [v.size_B for v in candidates.graph.values]
        self.resident = {v: self.rows.column() for v in self.scene.values}
        tie_ps = TIE * (send_ms + fetch_ms) * PS_PER_MS
        self.fetch = {v: self.rows.column(round(tie_ps * size_B[v])) for v in self.scene.values}
        self.again = {w.key: self.rows.column() for w in self.scene.candidates}
        self._spent += [(self.again[w.key], -(w.recompute_ps or 0) / PS_PER_MS) for w in self.scene.candidates]
        self._serve()
        self._time([(c, -size_B[v] * send_ms) for v, c in self.fetch.items()],
                   [(c, -size_B[v] * fetch_ms) for v, c in self.fetch.items()])  # fmt: skip
        self._knapsack(size_B)

    def solve(self, budget_B: int, effort: Effort) -> JointOffloadSolution:
        """Solves for a budget.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        model = self.rows.model()
        least = np.array(model.row_lower_)
        least[self._bytes] = -capacity_MiB(self._free_B + budget_B, self._most_B)
        model.row_lower_ = least
        solved = solve(model, effort)
        bound_ps = max(float(self.candidates.least_ps), proved_ps(solved.bound_ms) / (1.0 + 2.0 * TIE))
        x = solved.columns
        if x is None:
            return JointOffloadSolution(bound_ps, solved.impossible)
        chosen = {g: k for (g, k), column in self.choice.items() if x[column] > 0.5}
        return JointOffloadSolution(bound_ps, False, self.settled | chosen)

    def _options(self) -> dict[Owner, int]:
        candidates, columns = self.candidates, dict[Owner, int]()
        for g, among in candidates.options.items():
            options = [(g, k) for k in among]
            least_ps = min(candidates.option_ps[o] for o in options)
            columns |= {o: self.rows.column() for o in options}
            self._spent += [(columns[o], -(candidates.option_ps[o] - least_ps) / PS_PER_MS) for o in options]
            self.rows.row([(columns[o], 1.0) for o in options], 1.0)
            self.rows.row([(columns[o], -1.0) for o in options], -1.0)
        return columns

    def _present(self, value: int) -> list[Entry]:
        columns = [self.resident[value], self.fetch[value]]
        columns += [self.again[w.key] for w in self.candidates.makers.get(value, ()) if w.key in self.again]
        columns += [self.choice[o] for o in sorted(self.scene.later.get(value, ()))]
        return [(c, 1.0) for c in columns]

    def _serve(self) -> None:
        for need in self.scene.needs:
            if need.value not in self.resident:
                continue
            entries = self._present(need.value)
            if need.now:
                later = sorted(self.scene.later.get(need.value, ()))
                entries = [(self.resident[need.value], 1.0), *((self.choice[o], 1.0) for o in later)]
            if need.owner == ALWAYS:
                self.rows.row(entries, 1.0)
            elif all(column != self.choice[need.owner] for column, _ in entries):
                self.rows.row([*entries, (self.choice[need.owner], -1.0)])
        for candidate in self.scene.candidates:
            for v in candidate.reads:
                if v in self.resident:
                    self.rows.row([*self._present(v), (self.again[candidate.key], -1.0)])
            if candidate.owner != ALWAYS:
                self.rows.row([(self.choice[candidate.owner], 1.0), (self.again[candidate.key], -1.0)])

    def _time(self, sends: Sequence[Entry], fetches: Sequence[Entry]) -> None:
        before, behind = self.rows.measure(), self.rows.measure()
        spent = [entry for entry in self._spent if entry[1]]
        self.rows.row([(before, 1.0), (behind, 1.0), *spent], self.candidates.least_ps / PS_PER_MS)
        always = [w for w in self.candidates.candidates if w.owner == ALWAYS and w.runs]
        self.rows.row([(before, 1.0)], sum(w.run_ps for w in always if self._is_before(w)) / PS_PER_MS)
        self.rows.row([(behind, 1.0)], sum(w.run_ps for w in always if self._is_after(w)) / PS_PER_MS)
        self.rows.row([(before, 1.0), *(e for e in sends if e[1])])
        self.rows.row([(behind, 1.0), *(e for e in fetches if e[1])])

    def _is_before(self, candidate: Candidate) -> bool:
        cut_point = self.scene.cut_point
        return candidate.segment < cut_point.segment or (
            candidate.segment == cut_point.segment and candidate.latest < cut_point.place
        )

    def _is_after(self, candidate: Candidate) -> bool:
        cut_point = self.scene.cut_point
        return candidate.segment > cut_point.segment or (
            candidate.segment == cut_point.segment and candidate.earliest >= cut_point.place
        )

    def _knapsack(self, size_B: Sequence[int]) -> None:
        scene = self.scene
        moved_B = sum(
            v.size_B for v in self.candidates.graph.values if v.persistent and v.movable and v.memory == "device"
        )
        self._free_B = moved_B - scene.fixed_B - scene.run_B.get(ALWAYS, 0)
        entries = [(column, -size_B[v] / MIB) for v, column in self.resident.items()]
        runs = [(self.choice[o], -run_B / MIB) for o, run_B in scene.run_B.items() if o != ALWAYS]
        self._most_B = sum(size_B[v] for v in self.resident) + sum(scene.run_B.values())
        self._bytes = self.rows.row([*entries, *runs])
