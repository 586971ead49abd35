"""One stage of the smaller problem, what says when stages are recomputed, and how that is written down as steps.

Writing it down is the inverse of the reduction, with copies as early and as late as the order of runs allows. What is
fetched later is sent right after the run that first makes it, and dropped after the last use of each lifetime; a fetch
comes right before the run that needs it, and the last one ends the copy on the host. When copies are on their way is
decided later (`offload/transfers.py`).

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Run, Send, Step
from lowtide.planners.offload.movement import Movement

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


@dataclass(frozen=True)
class Lifting:
    """Writes lifetimes down as steps.

    Arguments:
        values: graph ids of the values that the lifetimes speak of, in their order.
        opened: the first stage of each stage's segment.
        again: recipe of the program -> the recipe that recomputations run instead.
    """

    graph: Graph
    stages: Sequence[Stage]
    values: Sequence[int]
    opened: Sequence[int]
    again: Mapping[int, int]
    movement: Movement
    lifetimes: Lifetimes

    @cached_property
    def items(self) -> list[list[int]]:
        """Per stage what comes before it, and the stage itself."""
        begin, item = (a.tolist() for a in self.lifetimes.recomputations())
        return [[*item[begin[t] : begin[t + 1]], t] for t in range(len(self.stages))]

    @cached_property
    def last_fetch(self) -> dict[int, int]:
        """Value that is fetched -> the last stage before which it is."""
        count = len(self.stages)
        return {self.values[r - count]: t for t, order in enumerate(self.items) for r in order if r >= count}

    @cached_property
    def starts(self) -> dict[tuple[int, int], int]:
        """Value and the first stage of a lifetime -> its last one."""
        begin, item = (a.tolist() for a in self.lifetimes.spans())
        rows = ((v, range(begin[i], begin[i + 1], 2)) for i, v in enumerate(self.values))
        return {(v, item[k]): item[k + 1] for v, row in rows for k in row}

    @cached_property
    def ends(self) -> list[dict[int, int]]:
        """Per last stage of lifetimes: value -> the first one."""
        ends: list[dict[int, int]] = [{} for _ in self.stages]
        for (value, first), last in self.starts.items():
            ends[last][value] = first
        return ends

    @cached_property
    def sent(self) -> frozenset[int]:
        """Values that are sent when they come about."""
        return frozenset(self.last_fetch).difference(self.movement.hosted) | self.movement.lent

    def steps(self) -> Iterator[Step]:
        """The steps, in order, without what they wait for. O(steps)."""
        lent: dict[int, None] = {}
        for t, stage in enumerate(self.stages):
            yield from self._stage(t, self.items[t], self.ends[t])
            for r in stage.host_recipes:
                recipe = self.graph.recipes[r]
                fresh = [v for v in recipe.read_values if v in self.movement.lent and v not in lent]
                yield from (Send(v, HOST) for v in fresh if self.graph.values[v].persistent)
                yield Run(r, recipe.outputs)
                lent.update(dict.fromkeys(fresh))
        yield from (Drop(v, HOST) for v in lent)

    def _stage(self, t: int, order: list[int], ending: dict[int, int]) -> Iterable[Step]:
        count = len(self.stages)
        last_read = {v: i for i, r in enumerate(order) if r < count for v in self.stages[r].reads}
        fetched = {self.values[r - count] for r in order if r >= count}
        for i, r in enumerate(order):
            if r >= count:
                yield from self._fetch(self.values[r - count], t)
                continue
            stage = self.stages[r]
            kept = [
                v
                for v in stage.outputs
                if (self.starts.get((v, t), -1) > t or last_read.get(v, -1) > i) and (r == t or v not in fetched)
            ]
            sent = [v for v in stage.outputs if v in self.sent] if r == t else []
            if stage.recipe == ENTRY:
                yield Boundary(stage.segment)
                yield from (Send(v, HOST) for v in sent)
                yield from (Drop(v) for v in stage.outputs if v not in kept and v not in self.movement.hosted)
            elif stage.recipe != EXIT:
                kept = [v for v in kept if (v, t) in self.starts]
                yield from self._run(t, i, r, kept, sent, last_read, ending)

    def _run(
        self,
        t: int,
        place: int,
        r: int,
        kept: list[int],
        sent: list[int],
        last_read: dict[int, int],
        ending: dict[int, int],
    ) -> Iterable[Step]:
        stage = self.stages[r]
        recipe = stage.recipe if r == t else self.again.get(stage.recipe, stage.recipe)
        gone = [v for v in stage.reads if v in ending and last_read[v] == place]
        for value, candidate in stage.takeovers:
            copied = self.last_fetch.get(value, -1) > t
            if value in gone and ending[value] >= self.opened[t] and not copied:
                recipe = candidate
                break
        consumed = {c.value for c in self.graph.recipes[recipe].consumes}
        returning = [v for v in self.graph.recipes[recipe].outputs if v in self.movement.returning]
        passing = [v for v in sent if v not in kept] + returning
        yield Run(recipe, (*kept, *passing))
        yield from (Send(v, HOST) for v in (*sent, *returning))
        yield from (Drop(v) for v in (*passing, *gone) if v not in consumed)

    def _fetch(self, value: int, t: int) -> Iterable[Step]:
        yield Fetch(value, HOST)
        if self.last_fetch[value] == t and value in self.sent and value not in self.movement.lent:
            yield Drop(value, HOST)
