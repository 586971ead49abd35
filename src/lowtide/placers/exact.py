"""Exact search for a placement within a height: from the ground up, valley by valley (`src/core/valley_search.hpp`).

Asked for the lowest placement, it first tries the bound, then heights between what it could not settle and the best
placement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import ValleySearch
from lowtide.ir.packing import Packed, Packing
from lowtide.placers.attempt import Attempt, conduct
from lowtide.placers.base import DEFAULT_WORK, AbstractPlacer, Watch
from lowtide.placers.greedy import place_greedily

_LEAST = 1000  # work that is worth a search
_CLOSE = 1000  # heights are told apart to this fraction of them, where nothing is proved


@final
@dataclass(frozen=True)
class Exact(AbstractPlacer):
    """Greedy orders for a first placement, then the exact search with the work that is left."""

    name: ClassVar[str] = "exact"

    def refuses(self, packing: Packing) -> str | None:  # noqa: ARG002
        """Nothing; what is too large for its work stays as the greedy orders left it."""
        return None

    def place(self, packing: Packing, *, seed: int = 0, work: int = DEFAULT_WORK, watch: Watch | None = None) -> Packed:
        """Places; see the module. `optimal` may rest on the search instead of on the live bytes."""

        def script(attempt: Attempt) -> None:
            attempt.run("greedy", place_greedily)
            attempt.run("exact", lambda a: search_valleys(a, work))

        return conduct(Attempt(packing, seed, work, watch), self.name, self.refuses(packing), script)


def search_valleys(attempt: Attempt, work: int) -> None:
    """Offers what the search finds and notes what it proves.

    Arguments:
        attempt: one with a placement.
        work: most of it to spend here: all on a capacity that was asked for, else half of what is left on each height.
    """
    target, left = attempt.enough, work
    while left >= _LEAST and attempt.height is not None and target < attempt.height:
        asked = attempt.packing.capacity_B is not None and target == attempt.enough
        found, spent = _decide(attempt, target, left if asked else left // 2)
        left -= spent
        if found is False:
            attempt.prove(target + 1)
        if found is not True:
            floor = target  # refuted, or not worth more work
        if attempt.done or (found is None and attempt.height - floor <= attempt.height // _CLOSE):
            return
        target = max(floor + 1, (floor + attempt.height) // 2)


def _decide(attempt: Attempt, target: int, work: int) -> tuple[bool | None, int]:
    """Whether a placement of at most `target` exists, as far as the work tells; and the work spent."""
    search = ValleySearch(attempt.ground.lifetimes, target, attempt.seed)
    before = attempt.work

    def tick() -> None:
        attempt.work = before + search.work
        attempt.tick()

    found = search.run(work, tick)
    tick()
    if found:
        attempt.offer(search.offsets, "exact search")
    for key, count in (("nodes", search.nodes), ("tries", search.tries), ("heights", 1)):
        attempt.stats[key] = attempt.stats.get(key, 0) + count
    return found, search.work
