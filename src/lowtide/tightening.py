"""Plans again for fewer bytes where addresses are too high, and finds the plan that shows what would be enough.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from lowtide.constraints import Constraints, PlanOptions, Start
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed, movable_values
from lowtide.ir.layout import SMALL_B
from lowtide.ir.plan import DEFAULT_WORK, Outcome, PlanRecord, Problem, Status
from lowtide.placers.addresses import lay_out
from lowtide.planners.base import Watch
from lowtide.planners.offload.host_updates import update_on_the_host
from lowtide.planners.offload.lean import lean, moves
from lowtide.planners.offload.transfers import measured
from lowtide.planners.start import STAGE as START

_EQUAL = 1e-6  # relative; bounds and times are sums in another order
_SHORTER = 4  # times shorter is a search that begins from the plan for a little more
_ROUNDS = 8  # of tightening a plan by what its addresses need beyond the budget


class Solver:
    """Solves for one number of live bytes after another.

    Each begins from the plan of the one before, and is shorter than the first. Invariant: after an interruption no
    search is longer than the default one, since a plan is still to be placed; and all searches that begin from a plan
    for another shape end together at its limit.
    """

    def __init__(self, graph: Graph, options: PlanOptions, start: Start | None, watch: Watch | None) -> None:
        self.graph, self.options, self.watch = graph, options, watch
        self.hurried = False
        self.winner: str | None = None  # what found the plan that the next search begins from
        self.begin = None if start is None else start.schedule
        self.again = False
        limit_s = None if start is None else start.limit_s
        self.until_s = None if limit_s is None else time.monotonic() + limit_s

    def solve(self, live_B: int) -> Outcome:
        options = self.options
        work = options.work // _SHORTER if self.again else options.work
        work = min(work, DEFAULT_WORK) if self.hurried else work
        problem = Problem(
            self.graph,
            live_B,
            options.seed,
            work,
            self._limit_s,
            self.begin,
            options.moves,
            options.host_budget_B,
            options.host_resident,
        )
        outcome = update_on_the_host(problem, options.planner.solve(problem, self.watch))
        if self.hurried and outcome.status is Status.FEASIBLE:
            outcome = msgspec.structs.replace(outcome, status=Status.INTERRUPTED)
        self.hurried = self.hurried or outcome.status is Status.INTERRUPTED
        if outcome.schedule is not None:
            self.begin, self.again = outcome.schedule, True
            winner = outcome.stats.get("winner")
            self.winner = winner if winner != START else self.winner or START
            outcome = msgspec.structs.replace(outcome, stats=outcome.stats | {"winner": self.winner})
        return outcome

    @property
    def _limit_s(self) -> float | None:
        if self.until_s is None:
            return self.options.time_limit_s
        left_s = max(0.0, self.until_s - time.monotonic())
        return left_s if self.options.time_limit_s is None else min(left_s, self.options.time_limit_s)


class Tightening:
    """Plans, places, and plans anew for fewer bytes by as much as the addresses took too many.

    Arguments:
        claims: the plan without a schedule.
        free_B: what the addresses may take.
        solve: plans for so many live bytes.
        still: the same without offloading; None where `solve` offloads nothing, or something has to be host-resident.
    """

    def __init__(
        self,
        claims: PlanRecord,
        constraints: Constraints,
        free_B: int,
        solve: Callable[[int], Outcome],
        seed: int,
        still: Callable[[int], Outcome] | None = None,
    ) -> None:
        self.claims, self.constraints, self.free_B, self.solve, self.seed = claims, constraints, free_B, solve, seed
        self.still = still
        self.lowest: PlanRecord | None = None
        self.last = claims.outcome
        self.bound_s: float | None = None  # of the first solve: what is proved for fewer bytes need not hold for these

    def run(self, live_B: int) -> PlanRecord | None:
        """A plan whose addresses fit; None if there is none, and then `lowest` is how low they came.

        The first one; but where values are offloaded, addresses may be too high only because copies come early:
        then the fastest of the same plan with late ones, a plan that offloads nothing, and the next.
        """
        whole_B, late = live_B, None
        for _ in range(_ROUNDS):
            outcome = self._bounded(self.solve(live_B))
            if outcome.schedule is None:
                self.last = outcome if late is None else late.outcome
                return late
            self.last = outcome
            record = self._placed(outcome, self._free_for(outcome))
            free_B = self._free_for(outcome)
            if record.layout is None or record.layout.height_B <= free_B:
                return record if late is None or record.time_s <= late.time_s else late
            if late is not None:
                return late
            late = self._instead_of(record, free_B, whole_B)
            excess_B = record.reserved_B - record.fixed_B - free_B
            live_B = min(live_B, record.peak_B - self.constraints.outside_B - self.constraints.live_blocks_B) - excess_B
        return late

    def _instead_of(self, record: PlanRecord, free_B: int, live_B: int) -> PlanRecord | None:
        """The faster of the same plan with late copies and one that offloads nothing; None where neither fits."""
        if not moves(record.schedule):
            return None
        found = [self._with_late_copies(record, free_B)]
        if self.still is not None:
            unmoved = Tightening(self.claims, self.constraints, self.free_B, self.still, self.seed)
            unmoved.bound_s = self.bound_s
            found.append(_as_one_that_may_move(unmoved.run(live_B), record.outcome))
        return min((f for f in found if f is not None), key=lambda f: f.time_s, default=None)

    def _with_late_copies(self, record: PlanRecord, free_B: int) -> PlanRecord | None:
        """The same plan with copies as late as can be; None where that is not within both budgets."""
        outcome = msgspec.structs.replace(record.outcome, schedule=lean(record.graph, record.schedule))
        found = self._placed(outcome, free_B)
        host_B = self.claims.host_budget_B
        fits = found.layout is not None and found.layout.height_B <= free_B
        return found if fits and (host_B is None or found.host_peak_B <= host_B) else None

    def least(self, known: PlanRecord | None, solve: Callable[[int], Outcome]) -> PlanRecord | None:
        """The plan that shows what budget is the smallest, once none was found for this one.

        Arguments:
            known: the one that showed it before.
            solve: plans for so many live bytes, and begins from nothing.
        """
        if known is not None:
            record = self._taken_over(known)
            if self.fits(record) or self._is_for_here(known):
                return record
        failed = self.last if self.last.schedule is None else self._bounded(solve(0))
        if failed.smallest_B is None and self.still is not None:  # the host may have too little memory to help
            solve, failed = self.still, self._bounded(self.still(0))
        if failed.smallest_B is None:
            return None
        found = msgspec.structs.replace(failed, schedule=failed.smallest, smallest=None, status=Status.FEASIBLE)
        if self.constraints.enforced:  # it has to be placed before anybody is told that it fits
            solved = self._bounded(solve(failed.smallest_B))
            found = found if solved.schedule is None else solved
        if found.schedule is None:
            return None
        if not moves(found.schedule):
            return self._placed(found, None)
        return self._lowest_of(found)

    def _lowest_of(self, outcome: Outcome) -> PlanRecord | None:
        """The plan of an outcome that offloads values, with late copies if the host has the memory for those."""
        assert outcome.schedule is not None
        late = lean(carried_out(self.claims, outcome, self.constraints).graph, outcome.schedule)
        found = self._placed(msgspec.structs.replace(outcome, schedule=late), None)
        host_B = self.claims.host_budget_B
        return found if host_B is None or found.host_peak_B <= host_B else self._placed(outcome, None)

    def fits(self, record: PlanRecord) -> bool:
        """Whether a plan is within the budget: tiny tensors need no addresses, but bytes."""
        return smallest_for_B(record, self.constraints) <= self.claims.budget_B and (
            record.layout is None or record.layout.height_B <= self._free_for(record.outcome)
        )

    def _free_for(self, outcome: Outcome) -> int:
        """Bytes that the addresses of a plan may take: those of what is host-resident as well."""
        return max(0, self.free_B + sum(self.claims.graph.values[v].size_B for v in outcome.hosted))

    def _taken_over(self, known: PlanRecord) -> PlanRecord:
        """A plan found before, with the claims of now; at its own addresses, if they are free."""
        outcome = msgspec.structs.replace(
            self.last,
            schedule=known.schedule,
            status=Status.FEASIBLE,
            smallest_B=known.outcome.smallest_B,
            smallest=None,
            hosted=known.outcome.hosted,
            stats=known.outcome.stats,
        )
        if not self._is_for_here(known):
            return self._placed(outcome, self._free_for(outcome))
        record = carried_out(self.claims, outcome, self.constraints)
        return msgspec.structs.replace(record, peak_B=known.peak_B, layout=known.layout)

    def _is_for_here(self, known: PlanRecord) -> bool:
        constraints, layout = self.constraints, known.layout
        around = layout is not None and (layout.live_blocks or layout.alignment_B != constraints.alignment_B)
        kept_B = (known.outside_B, known.reserve_B, known.optimizer_B)
        same = kept_B == (constraints.outside_B, constraints.reserve_B, constraints.optimizer_B)
        return same and not constraints.live_blocks and not around and (layout is not None) == constraints.enforced

    def _bounded(self, outcome: Outcome) -> Outcome:
        outcome = _at_the_end(outcome, self.claims, self.constraints)
        if self.bound_s is None:
            self.bound_s = outcome.bound_s
        if outcome.bound_s <= self.bound_s * (1.0 + _EQUAL):
            return outcome
        status = Status.FEASIBLE if outcome.status is Status.OPTIMAL else outcome.status
        return msgspec.structs.replace(outcome, bound_s=self.bound_s, status=status)

    def _placed(self, outcome: Outcome, free_B: int | None) -> PlanRecord:
        """The plan for an outcome, as low as is enough, or as low as it goes."""
        record = _with_addresses(self.claims, outcome, self.constraints, free_B, self.seed)
        if self.lowest is None or record.reserved_B < self.lowest.reserved_B:
            self.lowest = record
        return record


def _as_one_that_may_move(record: PlanRecord | None, other: Outcome) -> PlanRecord | None:
    """A plan that offloads nothing, with what is proved for those that may."""
    if record is None:
        return None
    outcome = msgspec.structs.replace(
        record.outcome,
        bound_class=other.bound_class,
        floor_B=other.floor_B,
        floor_class=other.floor_class,
        floor_recipes=other.floor_recipes,
    )
    return msgspec.structs.replace(record, outcome=outcome)


def smallest_for_B(record: PlanRecord, constraints: Constraints) -> int:
    """The least budget that a plan fits: its addresses, its live bytes, and without addresses what its search needs."""
    outside_B = constraints.outside_B + constraints.live_blocks_B
    live_B = record.peak_B - outside_B + constraints.fixed_B(record.graph)
    searched_B = 0 if constraints.enforced else (record.outcome.smallest_B or 0) + outside_B
    return max(record.reserved_B, live_B, searched_B)


def _at_the_end(outcome: Outcome, claims: PlanRecord, constraints: Constraints) -> Outcome:
    """Raises the floor to what is there when the optimizer steps: its temporaries and all that the caller holds."""
    graph = claims.graph if claims.machine is None else housed(claims.graph, movable_values(claims.graph))
    least_B = SMALL_B if constraints.enforced else 0  # tiny ones have their place in the reserve
    leaving = (v for v in graph.values if v.leaves is not None and v.held and not v.persistent and v.replaces is None)
    held_B = sum(v.size_B for v in leaving if v.size_B >= least_B)
    end_B = graph.persistent_B + held_B + constraints.optimizer_B
    if end_B <= outcome.floor_B or not constraints.optimizer_B:
        return outcome
    return msgspec.structs.replace(outcome, floor_B=end_B, floor_class="any schedule", floor_recipes=())


def carried_out(claims: PlanRecord, outcome: Outcome, constraints: Constraints) -> PlanRecord:
    """The plan for an outcome: its graph, with the placement that was chosen, and what it comes to."""
    assert outcome.schedule is not None
    graph = housed(claims.graph, outcome.hosted) if outcome.hosted else claims.graph
    timed = measured(graph, outcome.schedule, claims.machine)
    return msgspec.structs.replace(
        claims,
        graph=graph,
        schedule=outcome.schedule,
        outcome=outcome,
        peak_B=timed.peak_B + constraints.outside_B + constraints.live_blocks_B,
        time_s=timed.time_s,
        host_peak_B=timed.host_peak_B,
        sent_B=timed.sent_B,
        fetched_B=timed.fetched_B,
        stall_s=timed.stall_s if timed.sent_B or timed.fetched_B else 0.0,
    )


def _with_addresses(
    claims: PlanRecord, outcome: Outcome, constraints: Constraints, free_B: int | None, seed: int
) -> PlanRecord:
    """The plan for an outcome, its allocations placed if they are to be."""
    record = carried_out(claims, outcome, constraints)
    if not constraints.enforced:
        return record
    layout = lay_out(
        record.graph,
        record.schedule,
        live_blocks=constraints.live_blocks,
        after_B=constraints.optimizer_B,
        capacity_B=free_B,
        alignment_B=constraints.alignment_B,
        seed=seed,
    )
    return msgspec.structs.replace(record, layout=layout)
