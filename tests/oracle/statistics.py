"""Counts what an eviction manager did. Torch-free.

Units: `_B` bytes, `_s` seconds, `_ns` nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.ledger import Call, Value

_FNV_BASIS, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_EVICTED, _RECOMPUTED = 1, 2


@dataclass(slots=True)
class Statistics:
    """Counts since the manager began.

    Arguments:
        evictions, evicted_B: by choice of the policy; values that died are not among them.
        recomputations, recompute_ns: calls that were recomputed, and their cost.
        searches, candidates, search_s: requests that found no place, values weighed for them, time until they did.
        sent_B, fetched_B, fetches: offloaded to host memory and prefetched.
        moves, moved_B: of sliding.
        samples, free_shares: how many requests evicted, and the sum of the capacity's share that was free after each.
        digest: of all evictions and recomputations in order; equal runs have equal ones.
    """

    evictions: int = 0
    evicted_B: int = 0
    recomputations: int = 0
    recompute_ns: int = 0
    searches: int = 0
    candidates: int = 0
    search_s: float = 0.0
    sent_B: int = 0
    fetched_B: int = 0
    fetches: int = 0
    moves: int = 0
    moved_B: int = 0
    samples: int = 0
    free_shares: float = 0.0
    digest: int = _FNV_BASIS

    @property
    def fragmentation(self) -> float:
        """Mean share of the capacity that was free after a request that evicted; 0 where none did."""
        return self.free_shares / self.samples if self.samples else 0.0

    def evicted(self, value: Value, clock: int) -> None:
        self.evictions += 1
        self.evicted_B += value.size_B
        self._note(_EVICTED, value.id, clock)

    def recomputed(self, call: Call, clock: int) -> None:
        self.recomputations += 1
        self.recompute_ns += call.cost_ns
        self._note(_RECOMPUTED, call.id, clock)

    def searched(self, elapsed_s: float, candidates: int) -> None:
        self.searches += 1
        self.search_s += elapsed_s
        self.candidates = candidates

    def sampled(self, free_share: float) -> None:
        self.samples += 1
        self.free_shares += free_share

    def _note(self, *numbers: int) -> None:
        """FNV-1a over whole words."""
        for number in numbers:
            self.digest = ((self.digest ^ number) * _FNV_PRIME) & _MASK
