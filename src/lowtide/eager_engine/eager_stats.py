"""Counts of what a run inside `lowtide.eager` did so far. Torch-free.

Units: `_B` bytes, `_s` seconds, `_ns` nanoseconds of the cost model.
"""

from __future__ import annotations

import msgspec


class EagerStats(msgspec.Struct, frozen=True):
    """Counts since the context was made.

    Arguments:
        budget_B, peak_B: the budget; the most bytes in use at once, with what persists.
        calls, cost_ns: operators noted when they ran first, and their modelled cost.
        recomputations, recompute_ns: operators that were recomputed, and their modelled cost.
        evictions, evicted_B: by choice of the policy; what the program freed is not among them.
        requests: how often there was no place.
        searches, candidates, search_s: choices of the policy, values weighed, and the time they took.
        fragmentation: mean share of the budget that was free after a request that evicted.
        moves, moved_B: blocks slid together.
        retries: kernels run a second time because their arguments fenced the arena.
        sent_B, fetched_B, fetches: offloaded to host memory and prefetched from it.
        foreign_B: of storages that came from elsewhere.
        spilled_B: rematerialised outside the budget when the context was left.
        steps: per training step, the modelled cost of its operators and of its recomputations.
        divergences: where a step did not run like the one before, for policies that remember.
        policy: its name.
        digest: of all evictions and recomputations in order.
    """

    budget_B: int
    peak_B: int = 0
    calls: int = 0
    cost_ns: int = 0
    recomputations: int = 0
    recompute_ns: int = 0
    evictions: int = 0
    evicted_B: int = 0
    requests: int = 0
    searches: int = 0
    candidates: int = 0
    search_s: float = 0.0
    fragmentation: float = 0.0
    moves: int = 0
    moved_B: int = 0
    retries: int = 0
    sent_B: int = 0
    fetched_B: int = 0
    fetches: int = 0
    foreign_B: int = 0
    spilled_B: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    divergences: int = 0
    policy: str = ""
    digest: int = 0

    @property
    def overhead(self) -> float:
        """Modelled cost of recomputations over that of first runs."""
        return self.recompute_ns / self.cost_ns if self.cost_ns else 0.0
