"""The cut model as planners: keep its set across the cuts, rematerialise the rest lazily, just in time.

A plan replayed from one cut may exceed the budget at another stage; then the cut is solved again for a smaller budget,
found by bisection on the replayed plan's exact peak (`SingleCutReplay`), or there is another cut where the replay is
too full (`MultiCutReplay`). The bound of several cuts is the strongest that there is under tight budgets, and its
replays are where a search begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from threading import Event
from typing import ClassVar, final

from lowtide._core import Retention
from lowtide.planners.bounds.cut_model import CutModel, CutSolution, stage_cut, stage_cuts
from lowtide.planners.bounds.milp import PS_PER_MS, Effort
from lowtide.planners.chain.ladder import ladder
from lowtide.planners.clock import Deadline
from lowtide.planners.greedy import mend
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.reductions.stages import GapNumbers, StageProgram
from lowtide.planners.search import AbstractSearchPlanner, Search

_CLOSE = 1e-3  # as a fraction of the step: closer solutions of a cut cost more than they bring
_FAR = 1.05  # times the budget: a replay that takes more is not mended but solved anew, with rungs
_CLIMBS = 4  # solves with rungs
_BRIEFLY = 2  # solves with smaller budgets in a search for little work
_NODES = 5  # more of the tree takes most of the planning time and moves the plan by a tenth of a percent
_BETTER = 1.002  # times the recomputations that the best bound speaks of: less is no progress


@dataclass(frozen=True)
class StageCuts:
    """The cut model at some stages of a program.

    Arguments:
        stages: in order.
    """

    program: StageProgram
    stages: tuple[int, ...]
    model: CutModel

    @staticmethod
    def single(program: StageProgram, stage: int) -> StageCuts:
        """At one stage, with every value at its weight."""
        return StageCuts(program, (stage,), stage_cut(program, stage))

    @staticmethod
    def several(program: StageProgram, stages: Iterable[int], budget_B: int) -> StageCuts:
        """At several stages, with values of some weight."""
        return StageCuts(program, tuple(sorted(set(stages))), stage_cuts(program, stages, budget_B))

    def retention(self, solution: CutSolution) -> GapNumbers:
        """A retention that follows a solution as far as one number per gap can. O(values * cuts)."""
        assert solution.kept is not None
        program, core = self.program, self.program.core
        retention: GapNumbers = program.keep_all(0).taus
        for gap, cuts in self._gaps().items():
            value = int(core.gap_value[gap])
            dropped = []
            for k in cuts:
                if value in solution.kept[k]:
                    break
                dropped.append(k)
            if not dropped or not core.is_free(gap):
                continue
            start, last = core.gap_start(gap), dropped[-1]
            # Rematerialised for a reader in between, and dropped again: kept only from the last such cut on.
            passing = any(
                program.producer[value] in solution.again[k] for k in range(last) if self.stages[k + 1] > start
            )
            retention[gap] = max(start, self.stages[last]) + 1 if passing else start + 1
        return retention

    def _gaps(self) -> dict[int, list[int]]:
        """Per gap the cuts that lie in it and at which its value may be there, in order."""
        gaps: dict[int, list[int]] = {}
        for k, (stage, scene) in enumerate(zip(self.stages, self.model.scenes, strict=True)):
            for v in (*scene.values, *scene.absent):
                gaps.setdefault(self.program.core.gap_at(v, stage + (v == scene.taken)), []).append(k)
        return gaps


# one cut


@final
@dataclass(frozen=True)
class SingleCutReplay(AbstractSearchPlanner):
    """Solves the cut at the peak of keep-all and replays it.

    Arguments:
        rounds: solves with smaller budgets, if the first replay does not fit.
    """

    rounds: int = 6
    name: ClassVar[str] = "single-cut"

    def script(self, search: Search) -> None:
        """OPTIMAL when the replay costs what the bound says, else FEASIBLE or UNSOLVED."""
        beyond_keep_all(search, ("single_cut", lambda s: cut_and_replay(s, self.rounds)))


def cut_and_replay(search: Search, rounds: int = 6, cuts: int = 2, *, climb: bool = True) -> Retention | None:
    """Proves the bound at keep-all's peak and at the peaks of its replays, and offers replays.

    A replay that does not fit says where the next cut belongs: at its own peak. When that leads nowhere new, the
    cut with the lowest peak is solved for smaller budgets.

    Arguments:
        rounds: solves with smaller budgets.
        cuts: different stages at which to cut.
        climb: whether a replay that is far too full is tried with rungs.

    Returns: the replay with the lowest peak, to start a search from; None if there is none.
    """
    if search.is_brief:
        rounds, cuts, climb = min(rounds, _BRIEFLY), 1, False
    stage = search.program.keep_all(0).peak_stage
    lowest: Retention | None = None
    lowest_cut: StageCuts | None = None
    seen: set[int] = set()
    while stage not in seen and len(seen) < cuts:
        seen.add(stage)
        cut = StageCuts.single(search.program, stage)
        state = _try(search, cut, search.problem.budget_B, proves=True)
        if state is None:
            break
        if lowest is None or state.peak_B < lowest.peak_B:
            lowest, lowest_cut = state, cut
        if search.clock.is_close():
            return lowest
        stage = state.peak_stage
    if lowest is None or lowest_cut is None:
        return None
    if climb and lowest.peak_B > _FAR * search.budget_B:
        lowest = _climb(search, lowest_cut, lowest)
    return _shrink(search, lowest_cut, lowest, rounds)


def _climb(search: Search, cut: StageCuts, lowest: Retention) -> Retention:
    """Solves a cut with rungs, so that less has to be rematerialised at once."""
    rungs = ladder(search.program, cut.model.scenes[0].values, lowest.peak_B - search.budget_B)
    if rungs is None:
        return lowest
    trial_B = search.problem.budget_B
    for _ in range(_CLIMBS):
        state = _try(search, cut, trial_B, keep=rungs.rungs)
        if state is None or search.clock.is_close():
            break
        lowest = min(lowest, state, key=lambda s: s.peak_B)
        if state.fits:
            break
        trial_B -= max(1, min(rungs.between_B, state.peak_B - search.budget_B))
    return lowest


def _shrink(search: Search, cut: StageCuts, lowest: Retention, rounds: int) -> Retention:
    """Solves one cut for smaller budgets until its replay fits: first shrunk by what it was over, then bisection."""
    fits_B: int | None = None
    over_B = search.problem.budget_B
    trial_B = over_B - max(1, lowest.peak_B - search.budget_B)
    for _ in range(rounds):
        if search.clock.is_close():
            break
        state = _try(search, cut, trial_B)
        if state is not None and state.peak_B < lowest.peak_B:
            lowest = state
        if state is None or state.fits:
            fits_B = trial_B
        else:
            over_B = trial_B
        trial_B = over_B - (lowest.peak_B - search.budget_B) if fits_B is None else (fits_B + over_B) // 2
    return lowest


def _replay(search: Search, cut: StageCuts, solution: CutSolution) -> Retention:
    state = search.program.keep_all(search.budget_B)
    if not state.assign(cut.retention(solution)):
        state = search.program.keep_all(search.budget_B)
    return state


def _try(
    search: Search, cut: StageCuts, budget_B: int, proves: bool = False, keep: Collection[int] = ()
) -> Retention | None:
    """Solves one cut for one budget, notes what it proves, and offers its replay; None if no set fits."""
    solution = solve_cut(search, cut, budget_B, keep=keep)
    if proves:
        search.clock.prove(solution.bound_ps)
    state = None if solution.kept is None else _replay(search, cut, solution)
    if state is not None:
        search.stats.setdefault("replay_peaks_B", []).append(state.peak_B)
        search.offer(state)
        _mend(search, state)
    search.clock.tick()
    return state


def _mend(search: Search, state: Retention) -> None:
    """Lets a copy of a replay that is not far above the budget go down to it."""
    if state.fits or state.peak_B > _FAR * search.budget_B:
        return
    copy = search.program.keep_all(search.budget_B)
    if copy.assign(state.taus):
        mend(search, copy)


def solve_cut(
    search: Search, cut: StageCuts, budget_B: int, nodes: int = _NODES, keep: Collection[int] = ()
) -> CutSolution:
    """Solves a cut within the limits of the search, once, and counts."""
    key = (cut.stages[0], budget_B, nodes, frozenset(keep))
    if key in search.cuts_solved:
        return search.cuts_solved[key]
    close_ms = int(_CLOSE * search.program.time_ps) / PS_PER_MS
    solution = cut.model.solve(budget_B, Effort(close_ms, nodes, search.clock.left_s), keep)
    search.cuts_solved[key] = solution
    search.stats["ilp_solves"] = search.stats.get("ilp_solves", 0) + 1
    search.stats["ilp_nodes"] = search.stats.get("ilp_nodes", 0) + solution.nodes
    return solution


# several cuts


@dataclass(frozen=True)
class CutLimits:
    """How far to go; the result does not depend on the machine's speed unless the deadline strikes.

    Arguments:
        cuts: at most.
        columns: of the largest model.
        nodes: of each solver's tree; where they do not suffice, no cut is added.
        idle: further cuts without a better bound.
        deadline: when to stop.
        stop: set by another thread.
    """

    cuts: int = 10
    columns: int = 1300
    nodes: int = 10
    idle: int = 3
    deadline: Deadline = field(default_factory=Deadline)
    stop: Event | None = None

    @property
    def struck(self) -> bool:
        """Whether there is no more time."""
        return self.deadline.is_over or (self.stop is not None and self.stop.is_set())


@dataclass(frozen=True)
class CutsFound:
    """What some cuts came to.

    Arguments:
        bound_ps: proved: no schedule takes less.
        impossible: proved: no schedule of the class fits.
        replays: retentions, of more and more cuts.
        solves: how many.
    """

    bound_ps: float
    impossible: bool
    replays: tuple[GapNumbers, ...]
    solves: int


@final
@dataclass(frozen=True)
class MultiCutReplay(AbstractSearchPlanner):
    """Cuts at the peak of keep-all, then at the peaks of its own replays.

    Arguments:
        limits: how far to go.
    """

    limits: CutLimits = CutLimits()
    name: ClassVar[str] = "multi-cut"

    def script(self, search: Search) -> None:
        """OPTIMAL when a replay costs what the bound says, else FEASIBLE or UNSOLVED; rarely a plan of its own."""
        beyond_keep_all(search, ("multi_cut", self._cut))

    def _cut(self, search: Search) -> None:
        limits = replace(self.limits, deadline=search.clock.deadline)
        take(search, find_cuts(search.program, search.problem.budget_B, search.budget_B, limits))


def find_cuts(program: StageProgram, budget_B: int, free_B: int, limits: CutLimits) -> CutsFound:
    """Adds one cut after another. Touches nothing but its own values, so that it may run concurrently with a search.

    Arguments:
        budget_B: for the bound.
        free_B: for the replays: the budget less what is set aside.
    """
    state = program.keep_all(free_B)
    stages = [state.peak_stage]
    best_ps, idle, solves = 0.0, 0, 0
    replays: list[GapNumbers] = []
    while not limits.struck:
        cuts = StageCuts.several(program, stages, budget_B)
        if solves and cuts.model.columns > limits.columns:
            break
        close_ms = _CLOSE * program.time_ps / PS_PER_MS
        solution = cuts.model.solve(budget_B, Effort(close_ms, limits.nodes, limits.deadline.left_s, limits.stop))
        solves += 1
        spent_ps = solution.bound_ps - program.time_ps
        idle = 0 if spent_ps > best_ps * _BETTER else idle + 1
        best_ps = max(best_ps, spent_ps)
        if solution.impossible:
            return CutsFound(program.time_ps + best_ps, True, tuple(replays), solves)
        state = program.keep_all(free_B)
        if solution.kept is not None:
            retention = cuts.retention(solution)
            if state.assign(retention):
                replays.append(retention)
        stage = _next_stage(state, stages)
        if state.fits or stage is None or idle >= limits.idle or len(stages) >= limits.cuts or not solution.whole:
            break
        stages = sorted((*stages, stage))
    return CutsFound(program.time_ps + best_ps, False, tuple(replays), solves)


def take(search: Search, found: CutsFound) -> list[GapNumbers]:
    """Notes what cuts prove and offers their replays.

    Returns: the replays, the lowest peak first.
    """
    search.clock.prove(found.bound_ps)
    search.stats["cut_solves"] = search.stats.get("cut_solves", 0) + found.solves
    search.proved_impossible = search.proved_impossible or found.impossible
    ranked: list[tuple[int, int]] = []
    for number, retention in enumerate(found.replays):
        state = search.program.keep_all(search.budget_B)
        if state.assign(retention):
            ranked.append((state.peak_B, number))
            mend(search, state)
    return [found.replays[number] for _, number in sorted(ranked)]


def _next_stage(state: Retention, stages: list[int]) -> int | None:
    """Where the replay takes most bytes, the cuts aside."""
    live_B = state.live_B().copy()
    live_B[stages] = 0
    stage = int(live_B.argmax())
    return stage if live_B[stage] > 0 else None
