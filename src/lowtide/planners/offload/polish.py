"""The last changes to a plan that offloads values, each judged by exact time.

What a plan offloads, it may recompute instead, or keep; what it recomputes, it may offload. One value at a time, first
those for which there is most to gain, as long as that helps.
"""

from __future__ import annotations

from lowtide._core import KEEP
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.offload.offload_search import Found, OffloadCandidate, OffloadSearch
from lowtide.planners.reductions.stages import GapNumbers

_TRIALS = 120
_WORTH = 2e-5  # as a fraction of the step
_PRICE = 1.0  # of a second of the link, in seconds of compute, for what the changes entail
_PROPOSALS = 200  # that take as long as a trial
_LEAST = 0.08  # of the work, whatever was done before; but in larger graphs a trial takes seconds
_SMALL = 6000  # recipes that run


def polish(pool: OffloadSearch) -> None:
    """Improves the best plan, which offloads something, until nothing helps or its share of the work is done."""
    least = _LEAST * pool.problem.work if len(pool.graph.program) <= _SMALL else 0
    trials = min(_TRIALS, int(max(least, pool.problem.work - pool.work)) // _PROPOSALS)
    refused: set[tuple[int, bool]] = set()
    while pool.best is not None and pool.best.candidate is not None and not pool.clock.is_close():
        best = pool.best
        candidate = _wide(pool, best)
        found = False
        for value, by_fetch in _proposals(best, candidate):
            if (value, by_fetch) in refused or found:
                continue
            if trials == 0:
                return
            trials -= 1
            found = _try(pool, best, candidate, value, by_fetch=by_fetch)
            if not found:
                refused.add((value, by_fetch))
            pool.clock.tick()
        if not found:
            return


def _wide(pool: OffloadSearch, best: Found) -> OffloadCandidate:
    """The same host-resident values, and everything may be offloaded."""
    assert best.candidate is not None
    graph = best.candidate.program.graph
    candidate = pool.redraft(
        graph, best.hosted, fetchable_values(graph, pool.least_B) | best.candidate.program.movement.fetchable
    )
    candidate.price(pool.machine, _PRICE)
    return candidate


def _proposals(best: Found, candidate: OffloadCandidate) -> list[tuple[int, bool]]:
    """Values to change, and whether to offload them: large copies where compute waits, then dear recomputations."""
    program, retention = candidate.program, best.retention
    assert retention is not None
    fetched, again = [], []
    gap = 0
    for v, uses in enumerate(program.uses):
        gaps = range(gap, gap + len(uses) + 1)
        gap += len(uses) + 1
        if program.values[v] in program.movement.hosted:
            continue
        if any(retention[g] < KEEP for g in gaps):
            fetched.append((-program.size_B[v], v))
        elif any(retention[g] > KEEP and program.core.can_fetch(g) for g in gaps):
            gain = program.stages[program.producer[v]].recompute_ps / max(1, program.size_B[v])
            again.append((-gain, v))
    out = [(v, False) for _, v in sorted(fetched)]
    back = [(v, True) for _, v in sorted(again)]
    late = best.timing.stall_s > 0.002 * best.timing.time_s
    return [*out, *back] if late else [*back, *out]


def _try(pool: OffloadSearch, best: Found, candidate: OffloadCandidate, value: int, *, by_fetch: bool) -> bool:
    assert best.retention is not None
    for retention in _changed(candidate, best.retention, value, by_fetch=by_fetch):
        state = pool.settle(candidate, retention)
        if state is None:
            continue
        pool.stats["trials"] = pool.stats.get("trials", 0) + 1
        pool.work += _PROPOSALS
        if pool.estimate_s(candidate, state) >= best.timing.time_s * (1.0 - _WORTH):
            continue
        pool.consider(candidate, state)
        if pool.best is not best:
            return True
    return False


def _changed(candidate: OffloadCandidate, retention: GapNumbers, value: int, *, by_fetch: bool) -> list[GapNumbers]:
    """The changes of one value to try."""
    program = candidate.program
    first = program.core.gap_at(value, program.producer[value] + 1) if program.uses[value] else 0
    gaps = range(first, first + len(program.uses[value]) + 1)
    other, kept = retention.copy(), retention.copy()
    for g in gaps:
        if by_fetch and retention[g] > KEEP and program.core.can_fetch(g):
            other[g] = ~retention[g]
        elif not by_fetch and retention[g] < KEEP:
            other[g] = ~retention[g] if program.core.can_recompute(g) else KEEP
            kept[g] = KEEP
    return [other] if by_fetch or (other == kept).all() else [other, kept]
