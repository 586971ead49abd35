"""A lower bound on time for every choice of options at once, from one or several cut points of the schedule.

The columns are those of `single_cut.py` and `multi_cut.py`, and y_gk = group g has option k. For S_k, X_k at cut point
k (value v is resident then; recipe r is recomputed at least once between it and the next cut point) every schedule of
every choice satisfies

    minimise   sum time_gk y_gk + sum time_r X_kr                  time_gk: the option's first runs
    subject to sum_k y_gk = 1                     X_kr <= y_gk     for r of option k of g
               S_kv + sum_{r makes v} X_kr + sum_{later} y  >= 1, y_gk, X_kr
                                                  for v that is read until the next cut point by what always runs, by
                                                  option k of g, by r; "later": options that make v after the cut point
               sum size_v S_kv + sum run_gk y_gk <= budget - fixed  run_gk: of the recipe that is about to run
               S_{k+1,v} <= S_kv + sum_{r makes v} X_kr + sum_{later} y
               the first rows once more for S_k and Y_k, recomputed at some time after cut point k:
               X_jr <= Y_kr for j >= k, Y_kr <= sum_{j >= k} X_jr

Everything is taken at its best: of recipes that overwrite what they read the cheapest, no bytes for states of the
generator, nothing about values that some choice makes elsewhere. So the minimum holds for the whole class.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lowtide.planners.bounds.cut_points import CutPoint, Need, Scene, scene_at
from lowtide.planners.bounds.highs import Effort, solve
from lowtide.planners.bounds.rows import MIB, Rows, capacity_MiB, proved_ps
from lowtide.planners.implementations.candidates import ALWAYS, Candidate, Candidates, Owner
from lowtide.planners.implementations.dominance import reduced

JOINT_CLASS = "any implementation of every operator"
WEIGHTLESS = 2e-4  # of the budget, all such values together: they are taken to weigh nothing

Entry = tuple[int, float]
Key = tuple[int, Owner]


@dataclass(frozen=True, slots=True)
class JointSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule of any choice takes less, first runs included.
        impossible: the solver says that nothing fits.
        whole: whether the search of the solver's tree was completed.
        choice: group -> option; None when nothing was found.
        kept: per cut point what is kept across it.
    """

    bound_ps: float
    impossible: bool
    whole: bool
    choice: dict[int, int] | None = None
    kept: tuple[frozenset[int], ...] = ()


class JointCut:
    """The model for some cut points, built once and solved for several budgets.

    Arguments:
        candidates: of the graph.
        cut_points: in any order.
        budget_B: the largest for which it is solved.
    """

    def __init__(self, candidates: Candidates, cut_points: Iterable[CutPoint], budget_B: int) -> None:
        candidates, self.settled = reduced(candidates)
        self.candidates, self.rows = candidates, Rows()
        self.size_B = [v.size_B for v in candidates.graph.values]
        self.choice: dict[Owner, int] = {}
        for g, among in candidates.options.items():
            options = [(g, k) for k in among]
            least_ps = min(candidates.option_ps[o] for o in options)
            self.choice |= {o: self.rows.column(candidates.option_ps[o] - least_ps) for o in options}
            self.rows.row([(self.choice[o], 1.0) for o in options], 1.0)
            self.rows.row([(self.choice[o], -1.0) for o in options], -1.0)
        self.scenes = _scenes(candidates, sorted(set(cut_points)), weightless(candidates, budget_B))
        self.resident = [{v: self.rows.column() for v in scene.values} for scene in self.scenes]
        self.again = [{w.key: self.rows.column(w.recompute_ps or 0) for w in scene.candidates} for scene in self.scenes]
        for k, scene in enumerate(self.scenes):
            self._serve(k, scene, self.again[k], scene.needs)
            self._own(scene.candidates, self.again[k])
            if k + 1 < len(self.scenes):
                self._link(k)
                self._serve(k, scene, self._afterwards(k, scene), scene_at(candidates, scene.cut_point).needs)
        self._knapsacks = [self._knapsack(k, scene) for k, scene in enumerate(self.scenes)]

    @property
    def columns(self) -> int:
        """The size of the model."""
        return self.rows.columns

    def solve(self, budget_B: int, effort: Effort) -> JointSolution:
        """Solves for a budget.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        model = self.rows.model()
        least = np.array(model.row_lower_)
        for row, free_B, most_B in self._knapsacks:
            least[row] = -capacity_MiB(free_B + budget_B, most_B)
        model.row_lower_ = least
        solved = solve(model, effort)
        bound_ps = self.candidates.least_ps + proved_ps(solved.bound_ms)
        x = solved.columns
        if x is None:
            return JointSolution(bound_ps, solved.impossible, solved.whole)
        choice = self.settled | {g: k for (g, k), column in self.choice.items() if x[column] > 0.5}
        kept = tuple(frozenset(v for v, c in resident.items() if x[c] > 0.5) for resident in self.resident)
        return JointSolution(bound_ps, False, solved.whole, choice, kept)

    def _present(self, k: int, again: dict[Key, int], value: int) -> list[Entry]:
        """Resident at a cut point, or rematerialised after it, or made only after it."""
        scene = self.scenes[k]
        columns = [self.resident[k].get(value), *(again.get(w.key) for w in self.candidates.makers.get(value, ()))]
        later = scene.later.get(value, frozenset())
        return [(c, 1.0) for c in columns if c is not None] + [(self.choice[o], 1.0) for o in sorted(later)]

    def _serve(self, k: int, scene: Scene, again: dict[Key, int], needs: Sequence[Need]) -> None:
        """What is needed is resident, or rematerialised."""
        for need in needs:
            resident = self.resident[k].get(need.value)
            if resident is None:
                continue
            entries = [(resident, 1.0)] if need.now else self._present(k, again, need.value)
            if need.now:
                entries += [(self.choice[o], 1.0) for o in sorted(scene.later.get(need.value, ()))]
            self._at_least(entries, need.owner)
        for candidate in scene.candidates:
            for v in candidate.reads:
                if v in self.resident[k]:
                    self.rows.row([*self._present(k, again, v), (again[candidate.key], -1.0)])

    def _at_least(self, entries: Sequence[Entry], owner: Owner) -> None:
        """A sum of at least 1 where an option is chosen."""
        if owner == ALWAYS:
            self.rows.row(entries, 1.0)
        elif all(column != self.choice[owner] for column, _ in entries):
            self.rows.row([*entries, (self.choice[owner], -1.0)])

    def _own(self, candidates: Iterable[Candidate], again: dict[Key, int]) -> None:
        """Only what is chosen is recomputed."""
        for candidate in candidates:
            if candidate.owner != ALWAYS:
                self.rows.row([(self.choice[candidate.owner], 1.0), (again[candidate.key], -1.0)])

    def _link(self, k: int) -> None:
        """What is there at the next cut point was there at this one, or came in between."""
        for v, column in self.resident[k + 1].items():
            if v in self.resident[k]:
                self.rows.row([*self._present(k, self.again[k], v), (column, -1.0)])

    def _afterwards(self, k: int, scene: Scene) -> dict[Key, int]:
        """Columns for what is recomputed at any later time."""
        afterwards = {w.key: self.rows.column() for w in scene.candidates}
        for r, column in afterwards.items():
            stretches = [again[r] for again in self.again[k:] if r in again]
            self.rows.row([*((c, 1.0) for c in stretches), (column, -1.0)])
            for c in stretches:
                self.rows.row([(column, 1.0), (c, -1.0)])
        return afterwards

    def _knapsack(self, k: int, scene: Scene) -> tuple[int, int, int]:
        """The row of the bytes at a cut point, what they leave of a budget of nothing, and their maximum."""
        free_B = -scene.fixed_B - scene.run_B.get(ALWAYS, 0)
        entries = [(column, -self.size_B[v] / MIB) for v, column in self.resident[k].items()]
        runs = [(self.choice[o], -run_B / MIB) for o, run_B in scene.run_B.items() if o != ALWAYS]
        most_B = sum(self.size_B[v] for v in self.resident[k]) + sum(scene.run_B.values())
        return self.rows.row(entries + runs), free_B, most_B


def weightless(candidates: Candidates, budget_B: int) -> frozenset[int]:
    """The lightest values, as many as come to next to nothing."""
    sizes = sorted((candidates.graph.values[v].size_B, v) for v in candidates.makers)
    found, left_B = set[int](), WEIGHTLESS * budget_B
    for size_B, v in sizes:
        left_B -= size_B
        if left_B < 0:
            break
        found.add(v)
    return frozenset(found)


def _scenes(candidates: Candidates, cut_points: Sequence[CutPoint], light: Collection[int]) -> list[Scene]:
    """In order. Whatever a later cut point speaks of, the earlier ones do."""
    scenes: list[Scene] = []
    for k in reversed(range(len(cut_points))):
        until = cut_points[k + 1] if k + 1 < len(cut_points) else None
        scenes.append(scene_at(candidates, cut_points[k], until, light, scenes[-1].values if scenes else ()))
    return scenes[::-1]
