"""Exact search for a placement within a height: from the ground up, valley by valley (`src/core/valley_search.hpp`).

It first tries the height that is enough, then heights between that and the best placement.
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
_SHARES = 24  # of the work, one per height in the first round
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

    Each round tries the height that is enough, the hardest and the best to have, then bisects between what it could
    not settle and the best placement; the next round spends twice as much on each height.

    Arguments:
        attempt: one with a placement.
        work: most of it to spend here.
    """
    until, share = attempt.work + work, max(_LEAST, work // _SHARES)
    searches: dict[int, ValleySearch] = {}
    while not attempt.done and attempt.work < until:
        unsettled = None
        while attempt.height is not None and not attempt.done and attempt.work < until:
            low = attempt.enough if unsettled is None else unsettled
            target = low if unsettled is None else (low + attempt.height) // 2
            if target == unsettled or (unsettled is not None and attempt.height - low <= attempt.height // _CLOSE):
                break
            if target not in searches:
                searches[target] = ValleySearch(attempt.ground.lifetimes, target, attempt.seed)
            most = share if unsettled is not None else 4 * share
            found = _decide(attempt, searches[target], min(most, until - attempt.work))
            if found is False:
                attempt.prove(target + 1)
            if found is not True:
                unsettled = target
        share *= 2
    attempt.stats |= {
        "heights": len(searches),
        "nodes": sum(s.nodes for s in searches.values()),
        "tries": sum(s.tries for s in searches.values()),
    }


def _decide(attempt: Attempt, search: ValleySearch, work: int) -> bool | None:
    """Whether there is a placement within the search's height, as far as the work tells."""
    before = attempt.work - search.work

    def tick() -> None:
        attempt.work = before + search.work
        attempt.tick()

    found = search.run(work, tick)
    tick()
    if found:
        attempt.offer(search.offsets, "exact search")
    return found
