"""When to copy: a naive schedule that offloads values -> the same runs in the same order, with its copies well timed.

Copies overlap compute, one at a time per direction, in the order in which they are issued. Given a legal schedule that
sends what it drops and fetches right before the need,

- a value is sent as soon as it is there and its engine is free, the one that has to go first before the others;
- its bytes on the device are freed only when somebody needs them: of what has been sent, what is needed last goes
  first; where nothing has been sent yet, compute waits for the copy that ends first;
- a value is fetched no earlier than it has to be for all that is needed later to come in time (earliest deadline first,
  backwards), and not before its bytes are free for the rest of its absence;
- what is still there when it would be fetched is kept, and what is never freed is not sent: then all is timed anew.

A value comes no later, and is sent no later, than in the naive schedule, so that its bytes always suffice. Fetches are
in the segment of their need.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from lowtide.ir.graph import Graph
from lowtide.ir.machine import Machine
from lowtide.ir.schedule import HOST, Fetch, Schedule, Send
from lowtide.ir.simulate import simulate
from lowtide.planners.offload.absences import Absences, find_absences, is_spare
from lowtide.planners.offload.dispatch import Dispatch
from lowtide.planners.offload.movement import Rates
from lowtide.planners.offload.waits import with_waits

_ROUNDS = 4  # of timing anew
_MANY = 20_000  # steps, of which fewer rounds have to do
_EQUAL = 1e-9  # relative


@dataclass(frozen=True)
class Timing:
    """A schedule whose copies are timed.

    Arguments:
        time_s: of the whole step.
        compute_s: of its runs alone; the rest is waiting.
        sent_B, fetched_B: bytes over the link.
        peak_B, host_peak_B: most bytes at once.
    """

    schedule: Schedule
    time_s: float
    compute_s: float
    sent_B: int
    fetched_B: int
    peak_B: int
    host_peak_B: int

    @property
    def stall_s(self) -> float:
        """How long compute waits, or the step goes on after it."""
        return max(0.0, self.time_s - self.compute_s)


def timing(
    graph: Graph, schedule: Schedule, machine: Machine, budget_B: int, host_budget_B: int | None = None
) -> Timing:
    """Times the copies of a schedule; see the module.

    Arguments:
        graph: with the host-resident values of the schedule (`lowtide.ir.housing.housed`).
        schedule: legal but for its `after` within both budgets, in the order in which it stands.
        machine: with a link in each direction.
        host_budget_B: None for no limit.

    Returns: a legal schedule with all waits, no slower than the given one by `lowtide.ir.simulate`, and what it comes
        to. O(rounds * (steps * engines + copies * places)).
    """
    naive = with_waits(graph, schedule.steps)
    best = measured(graph, naive, machine)
    if not any(isinstance(s, Send | Fetch) and s.memory == HOST for s in schedule.steps):
        return best
    found = find_absences(graph, schedule)
    large = len(schedule.steps) > _MANY
    starts = (frozenset[int](),) if large else (frozenset[int](), _what_fits(graph, found, budget_B))
    for kept in dict.fromkeys(starts):
        timed = _best_of_rounds(graph, found, machine, budget_B, host_budget_B, kept, 2 if large else _ROUNDS)
        if timed is not None and _rank(timed) < _rank(best):
            best = timed
    return best


def estimated_s(
    graph: Graph, schedule: Schedule, machine: Machine, budget_B: int, host_budget_B: int | None = None
) -> float:
    """About what `timing` will come to, at a fraction of its cost; infinite where bytes run out."""
    found = find_absences(graph, schedule)
    rates, starts = Rates.of(machine), _first_starts(found)
    ended_by_fetch: frozenset[int] | None = None
    kept: frozenset[int] = frozenset()
    best_s = float("inf")
    for _ in range(2):
        walk = Dispatch(graph, found, rates, budget_B, host_budget_B, starts, kept, ended_by_fetch)
        if not walk.run():
            break
        best_s = min(best_s, walk.time_s)
        starts, kept, ended_by_fetch = walk.starts, walk.needless, walk.ended_by_fetch
    return best_s


def _best_of_rounds(
    graph: Graph,
    found: Absences,
    machine: Machine,
    budget_B: int,
    host_budget_B: int | None,
    kept: frozenset[int],
    rounds: int,
) -> Timing | None:
    """Times copies, then all but those that were needless, for as long as that helps. None where bytes run out."""
    rates, starts = Rates.of(machine), _first_starts(found)
    best: Timing | None = None
    ended_by_fetch: frozenset[int] | None = None
    for _ in range(rounds):
        walk = Dispatch(graph, found, rates, budget_B, host_budget_B, starts, kept, ended_by_fetch)
        if not walk.run():
            break
        timed = measured(graph, with_waits(graph, walk.steps), machine)
        better = best is None or _rank(timed) < _rank(best)
        if better:
            best = timed
        elif kept == walk.needless:
            break
        starts, kept, ended_by_fetch = walk.starts, walk.needless, walk.ended_by_fetch
    return best


def _what_fits(graph: Graph, found: Absences, budget_B: int) -> frozenset[int]:
    """Copies whose values can be kept instead, all of them together: those away for the shortest time first."""
    free_B = budget_B - found.free_B
    kept: set[int] = set()

    def away(i: int) -> int:
        return sum((found.absences[a].back or 0) - found.absences[a].leave for a in found.copies[i].absences)

    for i in sorted((i for i, c in enumerate(found.copies) if is_spare(found, c)), key=lambda i: (away(i), i)):
        absences = [found.absences[a] for a in found.copies[i].absences]
        size_B = graph.values[found.copies[i].value].size_B
        if all(int(free_B[a.leave : a.back].min(initial=size_B)) >= size_B for a in absences):
            kept.add(i)
            for a in absences:
                free_B[a.leave : a.back] -= size_B
    return frozenset(kept)


def _rank(timed: Timing) -> tuple[float, int]:
    return timed.time_s * (1.0 + _EQUAL), timed.sent_B + timed.fetched_B


def measured(graph: Graph, schedule: Schedule, machine: Machine | None) -> Timing:
    """What a schedule comes to as it stands. O(steps)."""
    timeline = simulate(graph, schedule, machine)
    compute_s = sum(m.stop_s - m.start_s for m in timeline.instants if m.engine == "compute" and m.stop_s > m.start_s)
    sent_B = sum(graph.values[s.value].size_B for s in schedule.steps if isinstance(s, Send))
    fetched_B = sum(graph.values[s.value].size_B for s in schedule.steps if isinstance(s, Fetch))
    host_peak_B = dict(timeline.memory_peaks_B).get(HOST, 0)
    return Timing(schedule, timeline.time_s, compute_s, sent_B, fetched_B, timeline.peak_B, host_peak_B)


def _first_starts(found: Absences) -> list[float]:
    """When each run would start if nothing waited."""
    return list(itertools.accumulate((a.time_s if a.computes else 0.0 for a in found.anchors), initial=0.0))
