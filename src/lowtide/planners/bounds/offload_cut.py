"""A lower bound on time where values may be offloaded as well, from one cut point of the schedule.

At the cut point when the base recipe of stage t starts, exactly the earlier stages have had their first run. Let S_v =
value v is on the device then, X_r = recipe r is recomputed at least once afterwards, F_v = v is not there, and what
brings it next is a fetch. A = seconds until the cut point, Z = seconds from it on. Every schedule satisfies

    minimise   A + Z
    subject to A >= runs before t                        Z >= runs from t on + sum time_r X_r
               A >= sum send_v F_v                       Z >= run of t + sum fetch_v F_v
               the same for every stretch of A up to the cut point, and what is made in it; and for every stretch of Z
               from the cut point on, and what is needed again in it
               S_v + X_producer(v) + F_v >= 1            for v that a later stage needs
               S_v + X_producer(v) + F_v >= X_r          for v that r reads
               sum size_v S_v <= budget - fixed - trace_t,   S_v = 1 for what stage t reads, or the caller holds

since of what is away and comes back by a fetch, the copy had been made, one after another, before its bytes were free;
and no fetch that is issued later starts before the run of t has ended (`lowtide.ir.simulate`). One direction of the
link carries one value at a time, so seconds of one direction add up.

A movable persistent value w may be host-resident, Y_w. It is on the device at the cut point unless it is; away at the
cut point and read later it is fetched then, G_w; host-resident and read before, it was fetched before.

    S_w >= 1 - Y_w                   S_w + G_w >= 1 if a later stage reads it; S_w = 1 if stage t does
    A >= sum fetch_w Y_w             for w that stage t or an earlier one reads
    Z >= run of t + sum fetch_v F_v + sum fetch_w G_w, and so on
    Z >= run of t + sum send_w Y_w   for w whose new content only a run on the device makes, and no earlier than t

What is away, and host-resident values, are on the host at the cut point, and fit there. All is taken at its best: any
value may be offloaded, whatever its size; latencies, recomputations before the cut point and generator states weigh
nothing. A little is added for what is offloaded, to break ties, and taken off again, since neither direction of the
link is busy for longer than A + Z. Solved by HiGHS; only its dual bound is reported.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.ir.graph import Graph
from lowtide.ir.machine import Machine
from lowtide.planners.bounds.highs import Effort, solve
from lowtide.planners.bounds.rows import MIB, PS_PER_MS, Rows, capacity_MiB, proved_ps
from lowtide.planners.offload.rates import Rates
from lowtide.planners.reductions.stages import StageProgram

_STRETCHES = 24  # of the time on either side of the cut point

TIE = 1e-4  # what a second of the link costs, so that nothing is offloaded needlessly

Entry = tuple[int, float]


def offload_class(machine: Machine) -> str:
    """The class of schedules for which the bound holds, in words."""
    rates = Rates.of(machine)
    there, back = (f"{1e-9 / s if s else float('inf'):.4g} GB/s" for s in (rates.to_s_per_B, rates.from_s_per_B))
    return f"any recomputation; any offload to the host at {there} and prefetch at {back}"


def link_ms_per_B(machine: Machine) -> tuple[float, float]:
    """Milliseconds per byte to the host and back; 0 where a link is missing."""
    rates = Rates.of(machine)
    return 1e3 * rates.to_s_per_B, 1e3 * rates.from_s_per_B


@dataclass(frozen=True, slots=True)
class OffloadSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule takes less, first runs included.
        impossible: the solver says that nothing fits.
        kept: program values on the device at the cut point; None when nothing was found.
        fetched: those that are away and come back by a fetch.
        hosted: movable persistent values that are host-resident.
    """

    bound_ps: float
    impossible: bool
    kept: frozenset[int] | None = None
    fetched: frozenset[int] = frozenset()
    hosted: tuple[int, ...] = ()


class OffloadCut:
    """The model at one stage, for any budget.

    Arguments:
        program: of the graph with all persistent values on the device, in which nothing is offloaded.
        stage: the cut point.
        machine: with the links.
        host_budget_B: for the copies and host-resident values that are on the host at the cut point; None for no limit.
    """

    def __init__(self, program: StageProgram, stage: int, machine: Machine, host_budget_B: int | None = None) -> None:
        self.program, self.stage = program, stage
        self._send_ms, self._fetch_ms = link_ms_per_B(machine)
        self.rows = Rows()
        self.resident: dict[int, int] = {}
        self.fetch: dict[int, int] = {}
        self.again: dict[int, int] = {}
        self.host_resident: dict[int, int] = {}
        self._before: list[tuple[int, Entry]] = []  # sends until the cut point, and the stage that makes the value
        self._behind: list[tuple[int, Entry]] = []  # fetches from the cut point on, and the stage that needs the value
        self._resident_before: list[Entry] = []  # fetches until the cut point
        self._resident_behind: list[Entry] = []  # sends from the cut point on
        self._knapsack: list[Entry] = []
        self._free_B = -program.core_fixed_B - program.core.least_peak(stage)
        self._values()
        self._host_resident()
        self._times()
        if host_budget_B is not None:
            self._host(host_budget_B)
        self._most_B = int(sum(-size for _, size in self._knapsack) * MIB) + 1
        self._bytes = self.rows.row(self._knapsack)

    def solve(self, budget_B: int, effort: Effort | None = None) -> OffloadSolution:
        """Solves for a budget.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        model = self.rows.model()
        least = np.array(model.row_lower_)
        least[self._bytes] = -capacity_MiB(self._free_B + budget_B, self._most_B)
        model.row_lower_ = least
        solved = solve(model, effort or Effort())
        bound_ps = max(float(self.program.time_ps), proved_ps(solved.bound_ms) / (1.0 + 2.0 * TIE))
        x = solved.columns
        if x is None:
            return OffloadSolution(bound_ps, solved.impossible)
        return OffloadSolution(
            bound_ps,
            False,
            frozenset(v for v, c in self.resident.items() if x[c] > 0.5).union(self._there),
            frozenset(v for v, c in self.fetch.items() if x[c] > 0.5),
            tuple(w for w, c in self.host_resident.items() if x[c] > 0.5),
        )

    # the model

    def _values(self) -> None:
        program, stage, rows = self.program, self.stage, self.rows
        self._there = {v for v in range(len(program.values)) if self._has_to_be_there(v)}
        self._free_B -= sum(program.size_B[v] for v in self._there)
        needed = [
            v
            for v in range(len(program.values))
            if program.producer[v] < stage < program.last_use[v] and v not in self._there
        ]
        stack, seen = list(needed), set(needed)
        while stack:
            r = program.producer[stack.pop()]
            if r in self.again or program.stages[r].recompute_through <= stage:
                continue
            self.again[r] = rows.column()
            fresh = [v for v in program.read_ids[r] if v not in seen and v not in self._there]
            seen.update(fresh)
            stack.extend(fresh)
        for v in sorted(seen):
            size_B = program.size_B[v]
            moved_ms = size_B * (self._send_ms + self._fetch_ms)
            self.resident[v], self.fetch[v] = rows.column(), rows.column(self._tie_ps(moved_ms))
            self._knapsack.append((self.resident[v], -size_B / MIB))
            self._before.append((program.producer[v], (self.fetch[v], -size_B * self._send_ms)))
            self._behind.append((self._next_use(v), (self.fetch[v], -size_B * self._fetch_ms)))
        for v in needed:
            rows.row(self._present(v), 1.0)
        for r, column in self.again.items():
            for v in program.read_ids[r]:
                if v not in self._there:
                    rows.row([*self._present(v), (column, -1.0)])

    def _has_to_be_there(self, value: int) -> bool:
        program, stage = self.program, self.stage
        if program.producer[value] >= stage:
            return False
        uses = program.uses[value]
        if stage in uses:
            return True
        if not uses or uses[-1] < stage:
            return False
        start = max((u for u in uses if u < stage), default=program.producer[value])
        return start >= program.pinned_from[value]

    def _tie_ps(self, moved_ms: float) -> int:
        return round(TIE * moved_ms * PS_PER_MS)

    def _next_use(self, value: int) -> int:
        uses = self.program.uses[value]
        return next((u for u in uses if u > self.stage), len(self.program.stages))

    def _present(self, value: int) -> list[Entry]:
        columns = (self.resident[value], self.fetch[value], self.again.get(self.program.producer[value]))
        return [(column, 1.0) for column in columns if column is not None]

    def _host_resident(self) -> None:
        program, rows = self.program, self.rows
        read = _readings(program)
        sent, place = _sent_when_hosted(program.graph), self._program_place()
        for w in (v for v in program.graph.values if v.persistent and v.movable and v.size_B):
            reads = read.get(w.id, [])
            later = [t for t in reads if t > self.stage]
            size_ms = w.size_B * self._fetch_ms
            self.host_resident[w.id] = host_resident = rows.column(self._tie_ps(size_ms))
            self._free_B += w.size_B
            if self._reads_in_place(w.id):
                self._free_B -= w.size_B  # it is being read
            else:
                resident = rows.column()
                self._knapsack.append((resident, -w.size_B / MIB))
                rows.row([(resident, 1.0), (host_resident, 1.0)], 1.0)
                if later:
                    again = rows.column(self._tie_ps(size_ms))
                    rows.row([(resident, 1.0), (again, 1.0)], 1.0)
                    self._behind.append((later[0], (again, -size_ms)))
            if reads and reads[0] <= self.stage:
                self._resident_before.append((host_resident, -size_ms))
            if sent.get(w.id, -1) >= place:
                self._resident_behind.append((host_resident, -w.size_B * self._send_ms))

    def _reads_in_place(self, value: int) -> bool:
        recipe = self.program.stages[self.stage].recipe
        return recipe >= 0 and value in self.program.graph.recipes[recipe].read_values

    def _program_place(self) -> int:
        """Of the first program recipe that runs at the cut point or later."""
        places = {r: place for place, r in enumerate(self.program.graph.program)}
        later = (s.recipe for s in self.program.stages[self.stage :] if s.recipe >= 0)
        return min((places[r] for r in later), default=len(places))

    def _times(self) -> None:
        stages, t, rows = self.program.stages, self.stage, self.rows
        runs_ps = [s.run_ps for s in stages]
        before, behind = _stretches(runs_ps, 0, t), _stretches(runs_ps, t + 1, len(stages))
        past = [rows.measure() for _ in before]
        future = [rows.measure() for _ in behind]
        own = rows.measure()
        for columns, stretches in ((past, before), (future, behind), ([own], [(t, t + 1)])):
            for column, (a, b) in zip(columns, stretches, strict=True):
                rows.row([(column, 1.0)], sum(runs_ps[a:b]) / PS_PER_MS)
        recomputations = [(column, -stages[r].recompute_ps / PS_PER_MS) for r, column in self.again.items()]
        rest = [*future, own]
        rows.row([*((c, 1.0) for c in rest), *recomputations], sum(runs_ps[t:]) / PS_PER_MS)
        for k, (a, _) in enumerate(before):
            rows.row([*((c, 1.0) for c in past[k:]), *(e for made, e in self._before if made >= a and e[1])])
        for k, (_, b) in enumerate(behind):
            last = k == len(behind) - 1
            needed = (e for need, e in self._behind if (need < b or last) and e[1])
            rows.row([*((c, 1.0) for c in future[: k + 1]), *needed])
        rows.row([*((c, 1.0) for c in past), *(e for e in self._resident_before if e[1])])
        rows.row([*((c, 1.0) for c in future), *(e for e in self._resident_behind if e[1])])

    def _host(self, host_budget_B: int) -> None:
        """Copies that are fetched later, and host-resident values, all of which are on the host at the cut point."""
        sizes = [(column, self.program.size_B[v]) for v, column in self.fetch.items()]
        sizes += [(column, self.program.graph.values[w].size_B) for w, column in self.host_resident.items()]
        free_MiB = capacity_MiB(host_budget_B, sum(size_B for _, size_B in sizes))
        self.rows.row([(column, -size_B / MIB) for column, size_B in sizes if size_B], -free_MiB)


def _stretches(runs_ps: list[int], begin: int, end: int) -> list[tuple[int, int]]:
    """Stages [begin, end) in stretches that take about as long as each other."""
    total_ps, found, now_ps = sum(runs_ps[begin:end]), list[tuple[int, int]](), 0
    first = begin
    for t in range(begin, end):
        now_ps += runs_ps[t]
        if now_ps * _STRETCHES >= total_ps * (len(found) + 1):
            found.append((first, t + 1))
            first = t + 1
    return [*found[:-1], (found[-1][0], end)] if found else [(begin, end)]


def _readings(program: StageProgram) -> dict[int, list[int]]:
    """Per persistent value the stages whose base recipes read it on the device, in order."""
    found: dict[int, list[int]] = {}
    for t, stage in enumerate(program.stages):
        if stage.recipe >= 0 and program.graph.recipes[stage.recipe].engine == "compute":
            for v in program.graph.recipes[stage.recipe].read_values:
                if program.graph.values[v].persistent:
                    found.setdefault(v, []).append(t)
    return found


def _sent_when_hosted(graph: Graph) -> dict[int, int]:
    """Per movable value whose new content can only be made on the device, the place of the program that makes it."""
    found: dict[int, int] = {}
    program = {r: place for place, r in enumerate(graph.program)}
    for value in graph.values:
        makers = graph.producers[value.id]
        if value.replaces is None or any(graph.recipes[r].engine != "compute" for r in makers):
            continue
        for r in makers:
            if r in program:
                found[value.replaces] = program[r]
    return found
