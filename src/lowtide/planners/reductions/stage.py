"""One stage of the smaller problem, and what says when stages are recomputed.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ENTRY = -1
EXIT = -2


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: a recipe, or ENTRY or EXIT, in a segment; values by their ids in the graph.

    Arguments:
        takeovers: values that a run may overwrite, the preferred first, and the recipe that does so.
        takeover_trace_B: the peak of such a recipe's trace.
        host_recipes: recipes of the host's engine that are issued right behind it.
    """

    recipe: int
    segment: int
    outputs: tuple[int, ...]
    reads: tuple[int, ...]
    run_ps: int = 0
    recompute_ps: int = 0
    trace_B: int = 0
    recompute_trace_B: int = 0
    recompute_through: int = -1
    takeovers: tuple[tuple[int, int], ...] = ()
    takeover_trace_B: int = 0
    host_recipes: tuple[int, ...] = ()


class Lifetimes(Protocol):
    """What is written down as a schedule: which stages are recomputed when, and the lifetimes of values."""

    def recomputations(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Per stage what comes before it, in order, as rows: where each begins, and the items.

        An item is a stage that is recomputed, or the number of stages and a value: a fetch.
        """

    def spans(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Per value its lifetimes, as pairs of the stage that produces it and the stage of its last use, as rows."""
