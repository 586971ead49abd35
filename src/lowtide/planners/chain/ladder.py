"""Rungs for a single cut: values kept across it so that what is dropped between two of them can be rematerialised
alone.

A single cut pays for every recomputation once, however much is rematerialised together; of a long forward it drops all
that lies between two kept values, and rematerialising that takes more bytes than the cut saved. A rung is what crosses
from one link of the forward to the next. More rungs take more bytes across the cut and less where a stretch between two
of them is rematerialised; the fair number has the two alike. That is the square root rule of T. Chen, B. Xu, C. Zhang,
C. Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174 (2016), for what a cut has dropped.

Units: `_B` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from lowtide.planners.chain.links import links_of
from lowtide.planners.reductions.stages import StageProgram

_MOST_LINKS = 1000
_FEWEST = 3  # rungs


@dataclass(frozen=True)
class Ladder:
    """Rungs, and the bytes to leave for rematerialising what lies between two.

    Arguments:
        rungs: values that have to be kept.
        between_B: about how many bytes are rematerialised at once.
    """

    rungs: frozenset[int]
    between_B: int


def ladder(program: StageProgram, values: Collection[int], over_B: int) -> Ladder | None:
    """Chooses rungs.

    Arguments:
        values: what may be kept across the cut.
        over_B: bytes by which the replay of the cut alone exceeds the budget.

    Returns: None where the forward has too few links for any. O(graph).
    """
    there = frozenset(values)
    crossing = [
        found
        for links in links_of(program, _MOST_LINKS)
        for crossed in links.crossing
        if (found := tuple(v for v in crossed if v in there))
    ]
    size_B = program.size_B
    whole_B = sum(size_B[v] for crossed in crossing for v in crossed)
    if len(crossing) < 2 * _FEWEST or whole_B <= 0:
        return None
    count = round(math.sqrt(over_B * len(crossing) / whole_B))
    count = min(max(_FEWEST, count), len(crossing) // 2)
    places = (round((k + 1) * len(crossing) / (count + 1)) for k in range(count))
    return Ladder(frozenset(v for place in places for v in crossing[place]), over_B // (count + 1))
