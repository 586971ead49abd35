"""Exact search for a placement within a height: from the ground up, valley by valley (`src/core/valley_search.hpp`).

It first tries the height that is enough, then heights between that and the best placement.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import ValleySearch
from lowtide.ir.packing import Packed, Packing
from lowtide.placers.attempt import Attempt, conduct
from lowtide.placers.base import AbstractPlacer, Watch
from lowtide.placers.greedy import place_greedily

_PROBE = 3  # of the work may go into the first try
_COARSE = 8  # the first round tells heights apart to 1/256 of them, every other one to half of that


@final
@dataclass(frozen=True)
class Exact(AbstractPlacer):
    """Greedy orders for a first placement, then the exact search with the work that is left."""

    name: ClassVar[str] = "exact"

    def refuses(self, packing: Packing) -> str | None:  # noqa: ARG002
        """Nothing; what is too large for its work is left as the greedy orders left it."""
        return None

    def place(self, packing: Packing, *, seed: int = 0, work: int | None = None, watch: Watch | None = None) -> Packed:
        """Places; see the module. `optimal` may rest on the search instead of on the live bytes."""

        def script(attempt: Attempt) -> None:
            attempt.run("greedy", place_greedily)
            attempt.run("exact", lambda a: search_valleys(a, a.work_left))

        return conduct(Attempt(packing, seed, work, watch), self.name, self.refuses(packing), script)


def search_valleys(attempt: Attempt, work: int) -> None:
    """Offers what the search finds and notes what it proves.

    Each round tries the height that is enough, the hardest and the best to have, then bisects between what it could
    not settle and the best placement. Later rounds make more tries on each height, and tell closer ones apart.

    Arguments:
        attempt: one with a placement.
        work: most of it to spend here.
    """
    searches = _Searches(attempt)
    until, probe = attempt.work + work, attempt.work + work // _PROBE
    searches.decide(attempt.enough, 1, probe)
    too_large = attempt.work >= probe  # not even one descent of the search reached its end
    for number in itertools.count():
        if attempt.done or too_large or attempt.work >= until:
            break
        low = attempt.enough
        if number > 0 and searches.decide(low, 4**number, until) is True:
            continue
        while attempt.height is not None and attempt.height - low > max(1, attempt.height >> (_COARSE + number)):
            target = (low + attempt.height) // 2
            if searches.decide(target, 3 * 2**number, until) is not True:
                low = target  # refuted, or not settled in this round
    attempt.stats |= searches.stats


class _Searches:
    """One search per height, each going on where it stopped; one that has its answer is dropped."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.open: dict[int, ValleySearch] = {}
        self.stats = {"heights": 0, "nodes": 0, "tries": 0}

    def decide(self, height: int, tries: int, until: int) -> bool | None:
        """Whether there is a placement within the height, as far as so many more tries tell."""
        attempt = self.attempt
        if height not in self.open:
            self.open[height] = ValleySearch(attempt.arcs.lifetimes, height, attempt.seed)
            self.stats["heights"] += 1
        search = self.open[height]
        nodes, made, before = search.nodes, search.tries, attempt.work - search.work

        def tick() -> None:
            attempt.work = before + search.work
            attempt.tick()

        found = search.run(max(0, until - attempt.work), tries, tick)
        tick()
        self.stats["nodes"] += search.nodes - nodes
        self.stats["tries"] += search.tries - made
        if found is True:
            attempt.offer(search.offsets, "exact search")
        elif found is False:
            attempt.prove(height + 1)
        if found is not None:
            del self.open[height]
        return found
