"""Lower bounds on the time of a step from some of its cut points, and what to keep across them: one model.

At cut point k exactly the earlier first runs have happened. Let S_kv = value v is resident then, X_kr = recipe r is
recomputed at least once between it and the next cut point. Every schedule satisfies

    minimise   sum time_r X_kr
    subject to S_kv + sum_{r makes v} X_kr >= 1          for v that is read, or handed over, before the next cut point
               S_kv + sum_{r makes v} X_kr >= X_kq       for v that q reads
               sum size_v S_kv <= budget - what is there in any case - what the run at the cut point takes
               S_{k+1,v} <= S_kv + sum_{r makes v} X_kr  for v that had been made by cut point k

so the time of the first runs plus the minimum is a lower bound for any recomputation with first runs in this order.
With several cut points the first rows stand there once more, up to the end of the step, with Y_kr = "recomputed at some
time after cut point k": X_jr <= Y_kr for j >= k, Y_kr <= sum_{j >= k} X_jr. Without that one fraction of a value would
serve every stretch between two cut points; with it the relaxation is at least as strong as each single cut's, which is
a parametric minimum cut. Where a run may overwrite a value, it takes what the run in place takes, and S of that value
says whether it is kept behind the run, which then takes as much more.

**Choices.** Where operators have several implementations, y_gk = group g has option k:

    minimise   ... + sum time_gk y_gk                    the options' first runs
    subject to sum_k y_gk = 1        X_kr <= y_gk        for r of option k of g
               every row above for what option k of g reads is >= y_gk, not >= 1
               "later" options, which make v only after the cut point, are added to whatever provides v

**Copies.** Where values may be offloaded to the host, from one cut point: F_v = v is not there, and what brings it next
is a fetch. A, Z = seconds before the cut point, and from it on. F_v is added to whatever provides v, and

    minimise   A + Z
    subject to A >= first runs before                    Z >= first runs from there on + sum time_r X_r
               A >= sum send_v F_v                       Z >= run at the cut point + sum fetch_v F_v
               the same for every stretch of A up to the cut point, and what is made in it; and for every stretch of Z
               from the cut point on, and what is needed again in it

since of what is away and comes back by a fetch, the copy had been made, one after another, before its bytes were free;
and no fetch that is issued later starts before the run at the cut point has ended (`lowtide.ir.simulate`). One
direction of the link carries one value at a time, so seconds of one direction add up. With choices, a first run that
comes before the cut point with some of them and after it with others counts for A + Z alone. A movable persistent value
w may be host-resident, Y_w: it is on the device at the cut point unless it is; away there and read later it is fetched
then, G_w; host-resident and read before, it was fetched before.

    S_w >= 1 - Y_w                   S_w + G_w >= 1 if it is read later; no S_w where it is being read
    A >= sum fetch_w Y_w             for w that is read at the cut point or before
    Z >= run at the cut point + sum fetch_v F_v + sum fetch_w G_w, and so on
    Z >= run at the cut point + sum send_w Y_w   for w whose new content only a run on the device makes, and no earlier

What is away, and host-resident values, are on the host at the cut point, and fit there. All is taken at its best: any
value may be offloaded, whatever its size; latencies, recomputations before the cut point and generator states weigh
nothing. A little is added for what is offloaded, to break ties, and taken off again, since neither direction of the
link is busy for longer than A + Z.

Values that weigh next to nothing may be taken to weigh nothing. Solved by HiGHS; only its dual bound is reported.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lowtide.ir.machine import Machine
from lowtide.planners.bounds.cut_points import (
    CutPoint,
    Key,
    Need,
    Recomputation,
    Scene,
    choice_scene,
    choice_scenes,
    lightest,
    stage_scene,
    stage_scenes,
)
from lowtide.planners.bounds.milp import MIB, PS_PER_MS, Effort, Entry, Milp, capacity_MiB, proved_ps, solve
from lowtide.planners.implementations.candidates import ALWAYS, Candidate, Candidates, Owner
from lowtide.planners.implementations.dominance import reduced
from lowtide.planners.offload.movement import Rates
from lowtide.planners.reductions.stages import StageProgram

_STRETCHES = 24  # of the time on either side of the cut point
_LIGHT_STAGES, _LIGHT_CHOICES = 5e-4, 2e-4  # of the budget, all values together that are taken to weigh nothing
_TIE = 1e-4  # what a second of the link costs, so that nothing is offloaded needlessly


@dataclass(frozen=True, slots=True)
class CutSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule takes less, first runs included.
        impossible: the solver says that nothing fits.
        whole: whether the search of the solver's tree was completed.
        nodes: of that tree.
        kept: per cut point the values kept across it; None when nothing was found.
        again: per cut point the recipes that are recomputed before the next one.
        choice: group -> option.
        fetched: values that are away and come back by a fetch.
        hosted: movable persistent values that are host-resident.
    """

    bound_ps: float
    impossible: bool
    whole: bool = True
    nodes: int = 0
    kept: tuple[frozenset[int], ...] | None = None
    again: tuple[frozenset[int], ...] = ()
    choice: Mapping[int, int] = field(default_factory=dict)
    fetched: frozenset[int] = frozenset()
    hosted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Choices:
    """Groups of implementations of which one each is chosen.

    Arguments:
        options: per group those among which there is a choice.
        option_ps: time of the first runs that come with an option.
        settled: what is chosen of the other groups.
    """

    options: Mapping[int, tuple[int, ...]]
    option_ps: Mapping[Owner, int]
    settled: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class HostResident:
    """A movable persistent value, which may be on the host between its uses; indices of stretches as in `Copies`.

    Arguments:
        value: in the graph.
        is_read: whether the run at the cut point reads it.
        read_before: whether that run or an earlier one does.
        next_read: the stretch in which it is read next; None if it is not.
        sent_behind: whether a run at the cut point or later makes its new content on the device.
    """

    value: int
    size_B: int
    is_read: bool
    read_before: bool
    next_read: int | None
    sent_behind: bool


@dataclass(frozen=True)
class Copies:
    """What may be copied between device and host around one cut point, and when.

    Arguments:
        send_ms_per_B, fetch_ms_per_B: of the links; 0 where one is missing.
        before_ms, behind_ms: first runs in each stretch of time before the cut point, and behind its own run.
        own_ms: of the run at the cut point; None where it is among those behind.
        total_ms: the first runs that the recomputations come on top of.
        is_total_behind: whether those are the runs from the cut point on; else those of the whole step.
        made, needed: per value the stretch in which it is made, and that in which it is needed next.
        host_resident: what may be so.
        host_budget_B: for what is on the host at the cut point; None for no limit.
    """

    send_ms_per_B: float
    fetch_ms_per_B: float
    before_ms: tuple[float, ...]
    behind_ms: tuple[float, ...]
    own_ms: float | None
    total_ms: float
    is_total_behind: bool
    made: Mapping[int, int]
    needed: Mapping[int, int]
    host_resident: tuple[HostResident, ...] = ()
    host_budget_B: int | None = None


class CutModel:
    """The model, built once and solved for several budgets.

    Arguments:
        scenes: what matters at each cut point, in order.
        size_B: of each value.
        first_ps: time of the first runs that no schedule avoids.
        choices: of implementations; None where there are none.
        copies: between device and host, at a single cut point; None where nothing may be offloaded.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        size_B: Sequence[int],
        first_ps: int,
        choices: Choices | None = None,
        copies: Copies | None = None,
    ) -> None:
        assert copies is None or len(scenes) == 1
        self.scenes, self.size_B, self.first_ps = tuple(scenes), size_B, first_ps
        self.choices, self.copies = choices, copies
        self.milp = milp = Milp()
        self._spent: list[Entry] = []  # ms of options' first runs and of recomputations, where a row adds them up
        self._choice = {} if choices is None else self._choose(choices)
        self._provide(scenes)
        self._hosted: dict[int, int] = {}
        self._makers = [_makers(scene.recomputations) for scene in scenes]
        self._matters = [scene.matters for scene in scenes]
        self._knapsacks: list[tuple[int, int, int]] = []  # rows, what they leave of a budget of nothing, their maxima
        for k, scene in enumerate(scenes):
            self._serve(k, self._again[k], scene.needs)
            self._own(scene.recomputations, self._again[k])
            if k + 1 < len(scenes):
                self._link(k)
                self._serve(k, self._afterwards(k), scene.all_needs)
            self._weigh(k, [] if copies is None else self._copy(copies))
        self._model = milp.model()

    @property
    def columns(self) -> int:
        """The size of the model."""
        return self.milp.columns

    def solve(self, budget_B: int, effort: Effort | None = None, keep: Collection[int] = ()) -> CutSolution:
        """Solves for a budget.

        Arguments:
            budget_B: bytes for everything.
            effort: when to stop.
            keep: values that have to be kept across the first cut point; then nothing is proved.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        if not self.columns:
            possible = all(free_B + budget_B >= 0 for _, free_B, _ in self._knapsacks)
            kept = tuple(scene.there for scene in self.scenes) if possible else None
            return CutSolution(float(self.first_ps), not possible, kept=kept, again=(frozenset(),) * len(self.scenes))
        least, low = np.array(self.milp.least), np.array(self.milp.low)
        for row, free_B, most_B in self._knapsacks:
            least[row] = -capacity_MiB(free_B + budget_B, most_B)
        low[[column for v, column in self.resident[0].items() if v in keep]] = 1.0
        self._model.row_lower_, self._model.col_lower_ = least, low
        solved = solve(self._model, Effort() if effort is None else effort)
        bound_ps = float(self.first_ps) if keep else self._bound_ps(solved.bound_ms)
        impossible = solved.impossible and not keep
        x = solved.columns
        if x is None:
            return CutSolution(bound_ps, impossible, solved.whole, solved.nodes)
        return CutSolution(
            bound_ps,
            False,
            solved.whole,
            solved.nodes,
            kept=tuple(
                scene.there.union(v for v, c in resident.items() if x[c] > 0.5)
                for scene, resident in zip(self.scenes, self.resident, strict=True)
            ),
            again=tuple(
                frozenset(r.recipe for r in scene.recomputations if x[again[r.key]] > 0.5)
                for scene, again in zip(self.scenes, self._again, strict=True)
            ),
            choice=({} if self.choices is None else dict(self.choices.settled))
            | {g: k for (g, k), column in self._choice.items() if x[column] > 0.5},
            fetched=frozenset(v for v, c in self._fetch.items() if x[c] > 0.5),
            hosted=tuple(w for w, c in self._hosted.items() if x[c] > 0.5),
        )

    def _bound_ps(self, bound_ms: float) -> float:
        if self.copies is None:
            return self.first_ps + proved_ps(bound_ms)
        return max(float(self.first_ps), proved_ps(bound_ms) / (1.0 + 2.0 * _TIE))

    # columns

    def _provide(self, scenes: Sequence[Scene]) -> None:
        """S, F, X. In another order it is the same model, in which a solver with few nodes finds other solutions."""
        self.resident: list[dict[int, int]] = [{}]
        self._fetch: dict[int, int] = {}
        if self.copies is None:
            self.resident = [{v: self.milp.column() for v in scene.values} for scene in scenes]
        self._again = [{r.key: self._timed(r.time_ps) for r in scene.recomputations} for scene in scenes]
        if self.copies is not None:
            copied_ms_per_B = self.copies.send_ms_per_B + self.copies.fetch_ms_per_B
            for v in scenes[0].values:
                self.resident[0][v] = self.milp.column()
                self._fetch[v] = self.milp.column(_tie_ms(self.size_B[v] * copied_ms_per_B))

    def _timed(self, time_ps: int) -> int:
        """A column for what takes compute time: with copies a row adds it up, else it is its cost."""
        if self.copies is None:
            return self.milp.column(time_ps / PS_PER_MS)
        column = self.milp.column()
        if time_ps:
            self._spent.append((column, -time_ps / PS_PER_MS))
        return column

    def _choose(self, choices: Choices) -> dict[Owner, int]:
        """One option of every group."""
        columns: dict[Owner, int] = {}
        for g, among in choices.options.items():
            options = [(g, k) for k in among]
            least_ps = min(choices.option_ps[o] for o in options)
            columns |= {o: self._timed(choices.option_ps[o] - least_ps) for o in options}
            self.milp.row([(columns[o], 1.0) for o in options], 1.0)
            self.milp.row([(columns[o], -1.0) for o in options], -1.0)
        return columns

    # what is needed is provided

    def _provided(self, k: int, again: Mapping[Key, int], value: int) -> list[Entry]:
        """Resident at a cut point, or rematerialised after it, or fetched, or made only after it."""
        columns = [self.resident[k][value]] if value in self.resident[k] else []
        columns += [again[key] for key in self._makers[k].get(value, ())]
        if value in self._fetch:
            columns.append(self._fetch[value])
        if value in self.scenes[k].later:
            columns += [self._choice[o] for o in sorted(self.scenes[k].later[value])]
        return [(column, 1.0) for column in columns]

    def _serve(self, k: int, again: Mapping[Key, int], needs: Iterable[Need]) -> None:
        """What is needed is provided, and so is what recomputations read."""
        for need in needs:
            resident = self.resident[k].get(need.value)
            if resident is None:
                continue
            if need.now:
                later = sorted(self.scenes[k].later.get(need.value, ()))
                self._at_least([(resident, 1.0), *((self._choice[o], 1.0) for o in later)], need.owner)
            else:
                self._at_least(self._provided(k, again, need.value), need.owner)
        for recomputation in self.scenes[k].recomputations:
            for v in recomputation.reads:
                if v in self._matters[k]:
                    self.milp.row([*self._provided(k, again, v), (again[recomputation.key], -1.0)])

    def _at_least(self, entries: Sequence[Entry], owner: Owner) -> None:
        """A sum of at least 1 where an option is chosen."""
        if owner == ALWAYS:
            self.milp.row(entries, 1.0)
        elif all(column != self._choice[owner] for column, _ in entries):
            self.milp.row([*entries, (self._choice[owner], -1.0)])

    def _own(self, recomputations: Iterable[Recomputation], again: Mapping[Key, int]) -> None:
        """Only what is chosen is recomputed."""
        for recomputation in recomputations:
            if recomputation.owner != ALWAYS:
                self.milp.row([(self._choice[recomputation.owner], 1.0), (again[recomputation.key], -1.0)])

    # several cut points

    def _link(self, k: int) -> None:
        """What is there at the next cut point was there at this one, or came in between."""
        later, matters = self.scenes[k + 1], self._matters[k]
        if later.taken is not None and later.taken in matters:  # it is read, whether it is kept behind that or not
            self.milp.row(self._provided(k, self._again[k], later.taken), 1.0)
        for v in (v for v in later.values if v in matters):
            self.milp.row([*self._provided(k, self._again[k], v), (self.resident[k + 1][v], -1.0)])
        for v in sorted(later.there & matters):
            self.milp.row(self._provided(k, self._again[k], v), 1.0)

    def _afterwards(self, k: int) -> dict[Key, int]:
        """Columns for what is recomputed at any later time."""
        afterwards = {r.key: self.milp.column() for r in self.scenes[k].recomputations}
        for key, column in afterwards.items():
            stretches = [again[key] for again in self._again[k:] if key in again]
            self.milp.row([*((c, 1.0) for c in stretches), (column, -1.0)])
            for c in stretches:
                self.milp.row([(column, 1.0), (c, -1.0)])
        return afterwards

    # bytes

    def _weigh(self, k: int, more: Sequence[tuple[int, int]]) -> None:
        """What is resident at a cut point fits.

        Arguments:
            more: further columns and their bytes.
        """
        scene = self.scenes[k]
        sizes = [(column, self.size_B[v]) for v, column in self.resident[k].items()]
        sizes += [(self._choice[o], run_B) for o, run_B in scene.run_B.items()]
        sizes += more
        row = self.milp.row([(column, -size_B / MIB) for column, size_B in sizes])
        self._knapsacks.append((row, scene.free_B, sum(size_B for _, size_B in sizes)))

    # copies

    def _copy(self, copies: Copies) -> list[tuple[int, int]]:
        """Rows for seconds and for the host's bytes; returns what may be on the device beside the scene's values."""
        send_ms, fetch_ms = copies.send_ms_per_B, copies.fetch_ms_per_B
        sends = [(copies.made[v], (c, -self.size_B[v] * send_ms)) for v, c in self._fetch.items()]
        fetches = [(copies.needed[v], (c, -self.size_B[v] * fetch_ms)) for v, c in self._fetch.items()]
        on_device, fetched_before, sent_behind = list[tuple[int, int]](), list[Entry](), list[Entry]()
        for w in copies.host_resident:
            size_ms = w.size_B * fetch_ms
            hosted = self._hosted[w.value] = self.milp.column(_tie_ms(size_ms))
            if not w.is_read:
                resident = self.milp.column()
                on_device.append((resident, w.size_B))
                self.milp.row([(resident, 1.0), (hosted, 1.0)], 1.0)
                if w.next_read is not None:
                    again = self.milp.column(_tie_ms(size_ms))
                    self.milp.row([(resident, 1.0), (again, 1.0)], 1.0)
                    fetches.append((w.next_read, (again, -size_ms)))
            if w.read_before:
                fetched_before.append((hosted, -size_ms))
            if w.sent_behind:
                sent_behind.append((hosted, -w.size_B * send_ms))
        self._time(copies, sends, fetches, fetched_before, sent_behind)
        if copies.host_budget_B is not None:
            sizes = [(column, self.size_B[v]) for v, column in self._fetch.items()]
            sizes += [(self._hosted[w.value], w.size_B) for w in copies.host_resident]
            free_MiB = capacity_MiB(copies.host_budget_B, sum(size_B for _, size_B in sizes))
            self.milp.row([(column, -size_B / MIB) for column, size_B in sizes if size_B], -free_MiB)
        return on_device

    def _time(
        self,
        copies: Copies,
        sends: Sequence[tuple[int, Entry]],
        fetches: Sequence[tuple[int, Entry]],
        fetched_before: Sequence[Entry],
        sent_behind: Sequence[Entry],
    ) -> None:
        """The seconds on either side of the cut point: of first runs and recomputations, and of each link."""
        milp = self.milp
        before = [milp.measure() for _ in copies.before_ms]
        behind = [milp.measure() for _ in copies.behind_ms]
        own = [] if copies.own_ms is None else [milp.measure()]
        total = [*behind, *own] if copies.is_total_behind else [*before, *behind, *own]
        least_ms = (*copies.before_ms, *copies.behind_ms, *(() if copies.own_ms is None else (copies.own_ms,)))
        for column, runs_ms in zip((*before, *behind, *own), least_ms, strict=True):
            milp.row([(column, 1.0)], runs_ms)
        milp.row([*((c, 1.0) for c in total), *self._spent], copies.total_ms)
        for k in range(len(before)):
            milp.row([*((c, 1.0) for c in before[k:]), *(e for made, e in sends if made >= k and e[1])])
        for k in range(len(behind)):
            milp.row([*((c, 1.0) for c in behind[: k + 1]), *(e for needed, e in fetches if needed <= k and e[1])])
        for measures, entries in ((before, fetched_before), (behind, sent_behind)):
            if entries:
                milp.row([*((c, 1.0) for c in measures), *(e for e in entries if e[1])])


def _tie_ms(link_ms: float) -> float:
    """What so long a copy costs, in whole picoseconds."""
    return round(_TIE * link_ms * PS_PER_MS) / PS_PER_MS


def _makers(recomputations: Iterable[Recomputation]) -> dict[int, list[Key]]:
    found: dict[int, list[Key]] = {}
    for recomputation in recomputations:
        for v in recomputation.outputs:
            found.setdefault(v, []).append(recomputation.key)
    return found


def link_ms_per_B(machine: Machine) -> tuple[float, float]:
    """Milliseconds per byte to the host and back; 0 where a link is missing."""
    rates = Rates.of(machine)
    return 1e3 * rates.to_s_per_B, 1e3 * rates.from_s_per_B


# the models of a program


def stage_cut(program: StageProgram, stage: int) -> CutModel:
    """The model at one stage of a program, with every value at its weight. O(graph)."""
    return CutModel(stage_scenes(program, (stage,)), program.size_B, program.time_ps)


def stage_cuts(program: StageProgram, stages: Iterable[int], budget_B: int) -> CutModel:
    """The model at several stages of a program. O(cut points * graph).

    Arguments:
        budget_B: the largest for which it is solved: what weighs next to nothing of it is taken to weigh nothing.
    """
    light = lightest(((size_B, v) for v, size_B in enumerate(program.size_B)), _LIGHT_STAGES * budget_B)
    return CutModel(stage_scenes(program, stages, light), program.size_B, program.time_ps)


def offload_cut(program: StageProgram, stage: int, machine: Machine, host_budget_B: int | None = None) -> CutModel:
    """The model at one stage of a program whose values may be offloaded. O(graph).

    Arguments:
        program: of the graph with all persistent values on the device, in which nothing is offloaded.
        machine: with the links.
        host_budget_B: for the copies and host-resident values that are on the host at the cut point; None for no limit.
    """
    scene, stages, end = stage_scene(program, stage, may_fetch=True), program.stages, len(program.stages)
    runs_ps = [s.run_ps for s in stages]
    before, behind = _stretches(runs_ps, 0, stage), _stretches(runs_ps, stage + 1, end)
    send_ms, fetch_ms = link_ms_per_B(machine)
    hosted = _host_resident(program, stage, behind)
    copies = Copies(
        send_ms,
        fetch_ms,
        tuple(sum(runs_ps[a:b]) / PS_PER_MS for a, b in before),
        tuple(sum(runs_ps[a:b]) / PS_PER_MS for a, b in behind),
        own_ms=runs_ps[stage] / PS_PER_MS,
        total_ms=sum(runs_ps[stage:]) / PS_PER_MS,
        is_total_behind=True,
        made={v: _stretch_of(before, program.producer[v]) for v in scene.values},
        needed={v: _stretch_of(behind, _next(program.uses[v], stage, end)) for v in scene.values},
        host_resident=hosted,
        host_budget_B=host_budget_B,
    )
    scene = replace(scene, free_B=scene.free_B + sum(w.size_B for w in hosted if not w.is_read))
    return CutModel((scene,), program.size_B, program.time_ps, copies=copies)


def _next(places: Sequence[int], place: int, end: int) -> int:
    """The first of some places behind another one."""
    return next((p for p in places if p > place), end)


def _stretches(runs_ps: Sequence[int], begin: int, end: int) -> list[tuple[int, int]]:
    """Stages [begin, end) in stretches that take about as long as each other."""
    total_ps, found, now_ps = sum(runs_ps[begin:end]), list[tuple[int, int]](), 0
    first = begin
    for t in range(begin, end):
        now_ps += runs_ps[t]
        if now_ps * _STRETCHES >= total_ps * (len(found) + 1):
            found.append((first, t + 1))
            first = t + 1
    return [*found[:-1], (found[-1][0], end)] if found else [(begin, end)]


def _stretch_of(stretches: Sequence[tuple[int, int]], stage: int) -> int:
    """The stretch in which a stage lies; the last for the end of the step."""
    return next((k for k, (_, end) in enumerate(stretches) if stage < end), len(stretches) - 1)


def _host_resident(program: StageProgram, stage: int, behind: Sequence[tuple[int, int]]) -> tuple[HostResident, ...]:
    """What may be host-resident, and when it is read and replaced."""
    graph, place = program.graph, {r: place for place, r in enumerate(program.graph.program)}
    read: dict[int, list[int]] = {}  # persistent value -> the stages whose base recipes read it on the device, in order
    for t, s in enumerate(program.stages):
        if s.recipe >= 0 and graph.recipes[s.recipe].engine == "compute":
            for v in graph.recipes[s.recipe].read_values:
                if graph.values[v].persistent:
                    read.setdefault(v, []).append(t)
    sent: dict[int, int] = {}  # movable value whose new content only the device can make -> the place that makes it
    for value in graph.values:
        makers = graph.producers[value.id]
        places = [place[r] for r in makers if r in place]
        if value.replaces is not None and places and all(graph.recipes[r].engine == "compute" for r in makers):
            sent[value.replaces] = places[-1]
    later = (s.recipe for s in program.stages[stage:] if s.recipe >= 0)
    here = min((place[r] for r in later), default=len(place))
    recipe = program.stages[stage].recipe
    being_read = graph.recipes[recipe].read_values if recipe >= 0 else ()
    found = []
    for w in (v for v in graph.values if v.persistent and v.movable and v.size_B):
        reads = read.get(w.id, [])
        following = next((t for t in reads if t > stage), None)
        found.append(HostResident(
            w.id,
            w.size_B,
            is_read=w.id in being_read,
            read_before=bool(reads) and reads[0] <= stage,
            next_read=None if following is None else _stretch_of(behind, following),
            sent_behind=sent.get(w.id, -1) >= here,
        ))  # fmt: skip
    return tuple(found)


# the models of all choices of implementations


def choice_cut(
    candidates: Candidates, cut_points: Iterable[CutPoint], budget_B: int, machine: Machine | None = None
) -> CutModel:
    """The model at some cut points for every choice of implementations at once. O(cut points * graph).

    Arguments:
        candidates: of the graph.
        cut_points: in any order; one where values may be offloaded.
        budget_B: the largest for which it is solved: what weighs next to nothing of it is taken to weigh nothing.
        machine: with the links, where values may be offloaded. Movable persistent values are taken to be on the host,
            and to come for nothing.
    """
    candidates, settled = reduced(candidates)
    size_B = [v.size_B for v in candidates.graph.values]
    light = lightest(((size_B[v], v) for v in candidates.makers), _LIGHT_CHOICES * budget_B)
    choices = Choices(candidates.options, candidates.option_ps, settled)
    points = sorted(set(cut_points))
    if machine is None:
        return CutModel(choice_scenes(candidates, points, light), size_B, candidates.least_ps, choices)
    (point,) = points
    scene = choice_scene(candidates, point, None, light)
    values = candidates.graph.values
    moved_B = sum(v.size_B for v in values if v.persistent and v.movable and v.memory == "device")
    send_ms, fetch_ms = link_ms_per_B(machine)
    always = [w for w in candidates.candidates if w.owner == ALWAYS and w.runs]
    copies = Copies(
        send_ms,
        fetch_ms,
        (sum(w.run_ps for w in always if _is_before(w, point)) / PS_PER_MS,),
        (sum(w.run_ps for w in always if _is_behind(w, point)) / PS_PER_MS,),
        own_ms=None,
        total_ms=candidates.least_ps / PS_PER_MS,
        is_total_behind=False,
        made=dict.fromkeys(scene.values, 0),
        needed=dict.fromkeys(scene.values, 0),
    )
    scene = replace(scene, free_B=scene.free_B + moved_B)
    return CutModel((scene,), size_B, candidates.least_ps, choices, copies)


def _is_before(candidate: Candidate, point: CutPoint) -> bool:
    """Whether its first run comes before the cut point, whatever is chosen."""
    return candidate.segment < point.segment or (candidate.segment == point.segment and candidate.latest < point.place)


def _is_behind(candidate: Candidate, point: CutPoint) -> bool:
    """Whether its first run comes at the cut point or later, whatever is chosen."""
    return candidate.segment > point.segment or (
        candidate.segment == point.segment and candidate.earliest >= point.place
    )
