"""A lower bound on time where values may be moved as well, from one moment of the schedule.

At the moment when the base recipe of stage t starts, exactly the earlier stages have had their first run. Let S_v =
value v is on the device then, X_r = recipe r is rerun at least once afterwards, F_v = v is not there, and what brings
it next is a fetch. A = seconds until the moment, Z = seconds from it on. Every schedule satisfies

    minimise   A + Z
    subject to A >= runs before t                        Z >= runs from t on + sum time_r X_r
               A >= sum send_v F_v                       Z >= run of t + sum fetch_v F_v
               S_v + X_producer(v) + F_v >= 1            for v that a later stage needs
               S_v + X_producer(v) + F_v >= X_r          for v that r reads
               sum size_v S_v <= budget - fixed - trace_t,   S_v = 1 for what stage t reads, or the caller holds

since of what is away and comes back by a fetch, the copy had been made, one after another, before its bytes were free;
and no fetch that is issued later starts before the run of t has ended (`lowtide.ir.simulate`). One direction of the
link carries one value at a time, so seconds of one direction add up.

A movable persistent value w may have its home on the host, Y_w. It is on the device at the moment unless it does; away
at the moment and read later it is fetched then, G_w; at home on the host and read before, it was fetched before.

    S_w >= 1 - Y_w                   S_w + G_w >= 1 if a later stage reads it; S_w = 1 if stage t does
    A >= sum fetch_w Y_w             for w that stage t or an earlier one reads
    Z >= run of t + sum fetch_v F_v + sum fetch_w G_w
    Z >= run of t + sum send_w Y_w   for w whose new content only a run on the device makes, and no earlier than t

All is taken at its best: any value may move, whatever its size; latencies, reruns before the moment, generator states
and the host's budget weigh nothing. Solved by HiGHS; only its dual bound is reported.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lowtide.ir.graph import Graph
from lowtide.ir.machine import Machine
from lowtide.ir.schedule import DEVICE, HOST
from lowtide.planners.bounds.highs import Effort, solve
from lowtide.planners.bounds.rows import MIB, PS_PER_MS, Rows, proved_ps, room
from lowtide.planners.reductions.stages import StageProgram

Entry = tuple[int, float]


def moving_class(machine: Machine) -> str:
    """The class of schedules for which the bound holds, in words."""
    to_Bps, from_Bps = _rates(machine)
    return (
        f"any recomputation; any movement to the host at {to_Bps / 1e9:.4g} GB/s and back at {from_Bps / 1e9:.4g} GB/s"
    )


def _rates(machine: Machine) -> tuple[float, float]:
    """Bytes per second to the host and back; infinite where a link is missing."""
    device = machine.memories[0].name if machine.memories else DEVICE
    rates = {(link.source, link.target): link.rate_Bps for link in machine.links}
    return rates.get((device, HOST), float("inf")), rates.get((HOST, device), float("inf"))


@dataclass(frozen=True, slots=True)
class MovingSolution:
    """What the solver found.

    Arguments:
        bound_ps: proved: no schedule takes less, first runs included.
        impossible: the solver says that nothing fits.
        kept: program values on the device at the moment; None when nothing was found.
        fetched: those that are away and come back by a fetch.
        hosted: movable persistent values that have their home on the host.
    """

    bound_ps: float
    impossible: bool
    kept: frozenset[int] | None = None
    fetched: frozenset[int] = frozenset()
    hosted: tuple[int, ...] = ()


class MovingCut:
    """The model at one stage, for any budget.

    Arguments:
        program: of the graph with all homes on the device, in which nothing moves.
        stage: the moment.
        machine: with the links.
    """

    def __init__(self, program: StageProgram, stage: int, machine: Machine) -> None:
        self.program, self.stage = program, stage
        to_Bps, from_Bps = _rates(machine)
        self._send_ms, self._fetch_ms = 1e3 / to_Bps, 1e3 / from_Bps  # per byte
        self.rows = Rows()
        self.stay: dict[int, int] = {}
        self.fetch: dict[int, int] = {}
        self.again: dict[int, int] = {}
        self.home: dict[int, int] = {}
        self._before: list[list[Entry]] = [[], []]  # copies to the host and from it, until the moment and from it on
        self._behind: list[list[Entry]] = [[], []]
        self._knapsack: list[Entry] = []
        self._free_B = -program.core_fixed_B - program.core.least_peak(stage)
        self._values()
        self._homes()
        self._times()
        self._most_B = int(sum(-size for _, size in self._knapsack) * MIB) + 1
        self._bytes = self.rows.row(self._knapsack)

    def solve(self, budget_B: int, effort: Effort | None = None) -> MovingSolution:
        """Solves for a budget.

        Raises:
            KeyboardInterrupt: on Ctrl-C, within about a second.
        """
        model = self.rows.model()
        least = np.array(model.row_lower_)
        least[self._bytes] = -room(self._free_B + budget_B, self._most_B)
        model.row_lower_ = least
        solved = solve(model, effort or Effort())
        bound_ps = max(float(self.program.time_ps), proved_ps(solved.bound_ms))
        x = solved.columns
        if x is None:
            return MovingSolution(bound_ps, solved.impossible)
        return MovingSolution(
            bound_ps,
            False,
            frozenset(v for v, c in self.stay.items() if x[c] > 0.5).union(self._there),
            frozenset(v for v, c in self.fetch.items() if x[c] > 0.5),
            tuple(w for w, c in self.home.items() if x[c] > 0.5),
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
            if r in self.again or program.stages[r].rerun_through <= stage:
                continue
            self.again[r] = rows.column()
            fresh = [v for v in program.read_ids[r] if v not in seen and v not in self._there]
            seen.update(fresh)
            stack.extend(fresh)
        for v in sorted(seen):
            size_B = program.size_B[v]
            self.stay[v], self.fetch[v] = rows.column(), rows.column()
            self._knapsack.append((self.stay[v], -size_B / MIB))
            self._before[0].append((self.fetch[v], -size_B * self._send_ms))
            self._behind[1].append((self.fetch[v], -size_B * self._fetch_ms))
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

    def _present(self, value: int) -> list[Entry]:
        columns = (self.stay[value], self.fetch[value], self.again.get(self.program.producer[value]))
        return [(column, 1.0) for column in columns if column is not None]

    def _homes(self) -> None:
        program, rows = self.program, self.rows
        read = _readings(program)
        sent, place = _sent_when_hosted(program.graph), self._program_place()
        for w in (v for v in program.graph.values if v.persistent and v.movable and v.size_B):
            first, last = read.get(w.id, (len(program.stages), -1))
            size_ms = w.size_B * self._fetch_ms
            self.home[w.id] = home = rows.column()
            self._free_B += w.size_B
            if self._reads_home(w.id):
                self._free_B -= w.size_B  # it is being read
            else:
                stay = rows.column()
                self._knapsack.append((stay, -w.size_B / MIB))
                rows.row([(stay, 1.0), (home, 1.0)], 1.0)
                if last > self.stage:
                    again = rows.column()
                    rows.row([(stay, 1.0), (again, 1.0)], 1.0)
                    self._behind[1].append((again, -size_ms))
            if first <= self.stage:
                self._before[1].append((home, -size_ms))
            if sent.get(w.id, -1) >= place:
                self._behind[0].append((home, -w.size_B * self._send_ms))

    def _reads_home(self, value: int) -> bool:
        recipe = self.program.stages[self.stage].recipe
        return recipe >= 0 and value in self.program.graph.recipes[recipe].read_values

    def _program_place(self) -> int:
        """Of the first program recipe that runs at the moment or later."""
        places = {r: place for place, r in enumerate(self.program.graph.program)}
        later = (s.recipe for s in self.program.stages[self.stage :] if s.recipe >= 0)
        return min((places[r] for r in later), default=len(places))

    def _times(self) -> None:
        stages, t = self.program.stages, self.stage
        before, behind = self.rows.measure(), self.rows.measure()
        self.rows.row([(before, 1.0)], sum(s.run_ps for s in stages[:t]) / PS_PER_MS)
        reruns = [(column, -stages[r].rerun_ps / PS_PER_MS) for r, column in self.again.items()]
        self.rows.row([(behind, 1.0), *reruns], sum(s.run_ps for s in stages[t:]) / PS_PER_MS)
        for copies in self._before:
            self.rows.row([(before, 1.0), *_weighty(copies)])
        for copies in self._behind:
            self.rows.row([(behind, 1.0), *_weighty(copies)], stages[t].run_ps / PS_PER_MS)


def _weighty(entries: Iterable[Entry]) -> list[Entry]:
    return [(column, number) for column, number in entries if number]


def _readings(program: StageProgram) -> dict[int, tuple[int, int]]:
    """Per persistent value the first and the last stage whose base recipe reads it on the device."""
    found: dict[int, tuple[int, int]] = {}
    for t, stage in enumerate(program.stages):
        if stage.recipe >= 0 and program.graph.recipes[stage.recipe].engine == "compute":
            for v in program.graph.recipes[stage.recipe].read_values:
                if program.graph.values[v].persistent:
                    found[v] = (found.get(v, (t, t))[0], t)
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
