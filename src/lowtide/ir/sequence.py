"""Schedule + mini-traces -> the sequence of allocations, event by event, before anything has run.

The walk follows what generated code does: a run saves the generator's state, then the operator allocates and releases
as its mini-trace says, then results that are not kept die; a drop releases at once. Bytes that the caller brings
(inputs, parameters, tangents) are not allocated by the code and are not here; a gradient that goes straight from one
part's backward to another's keeps the bytes in which it was made.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.layout import SMALL_B, Block
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule, memory_of


@dataclass(slots=True)
class _Open:
    """An allocation that still holds its bytes."""

    step: int
    order: int
    size_B: int
    start: int
    value: int | None


def blocks_of(graph: Graph, schedule: Schedule, small_B: int = SMALL_B) -> tuple[Block, ...]:
    """Finds every allocation that the schedule's code makes, in order, with its lifetime.

    Arguments:
        graph: with traces; schedule: legal for it.
        small_B: smaller requests are left out.

    Returns: blocks in the order of their allocation. What the caller keeps lives to the end.

    O(steps + events).
    """
    walk = _Walk(graph)
    for index, step in enumerate(schedule.steps):
        walk.step(index, step)
    return walk.finish(small_B)


def small_peak_B(blocks: Iterable[Block], small_B: int = SMALL_B, granule_B: int = 64) -> int:
    """Most bytes at once of the requests below `small_B`, each rounded to the granule. O(blocks log blocks)."""
    changes: list[tuple[int, int]] = []
    for block in blocks:
        if block.size_B < small_B:
            size_B = -(-block.size_B // granule_B) * granule_B
            changes += [(block.start, size_B), (block.stop, -size_B)]
    now = top = 0
    for _, change_B in sorted(changes):
        now += change_B
        top = max(top, now)
    return top


class _Walk:
    """The state between two steps.

    Invariant: `open` maps every value that a run brought, and that is still there, to its allocation.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tick = 0
        self.open: dict[int, _Open] = {}
        self.closed: list[Block] = []
        self.waiting: dict[int, list[_Open]] = {}  # what was handed over, by the value that is to come of it
        self.leaving: dict[int, list[int]] = {}
        for value in graph.values:
            if value.leaves is not None and not (value.held or value.persistent):
                self.leaving.setdefault(value.leaves, []).append(value.id)

    def step(self, index: int, step: object) -> None:
        match step:
            case Run():
                recipe = self.graph.recipes[step.recipe]
                if memory_of(recipe.engine) == DEVICE:
                    self._run(index, step, recipe)
            case Drop(memory=memory):
                if memory == DEVICE:
                    self._drop(step.value)
            case Boundary():
                for value in self.leaving.get(step.segment - 1, ()):
                    self._hand_over(value)
            case Fetch():
                self.open[step.value] = self._allocate(index, 0, self.graph.values[step.value].size_B, step.value)

    def finish(self, small_B: int) -> tuple[Block, ...]:
        end = self.tick + 1
        for allocation in (*self.open.values(), *(a for handed in self.waiting.values() for a in handed)):
            self._close(allocation, end)
        return tuple(sorted((b for b in self.closed if b.size_B >= small_B), key=lambda b: b.start))

    def _run(self, index: int, step: Run, recipe: Recipe) -> None:
        aside = self._state(index, step, recipe)
        made: list[_Open | None] = []
        for event in recipe.trace.events:
            if event >= 0:
                made.append(self._allocate(index, len(made), event, None))
            else:
                released = made[-event - 1]
                if released is not None:
                    self._release(released)
                    made[-event - 1] = None
        taken = [(t.output, self.open.pop(t.value)) for t in recipe.consumes if t.value in self.open]
        passed = {output: allocation for output, allocation in taken if output is not None}
        outputs = [v for v in recipe.outputs if not (recipe.effect is Effect.RANDOM and v == recipe.state)]
        for position, value in enumerate(outputs):
            slot = recipe.trace.outputs[position] if position < len(recipe.trace.outputs) else None
            allocation = made[slot] if slot is not None else passed.get(position)
            if value in step.keep and allocation is not None:
                allocation.value = value
                self.open[value] = allocation
                if slot is not None:
                    made[slot] = None
        for left in reversed(made):
            if left is not None:
                self._release(left)
        for output, allocation in taken:
            if output is None or outputs[output] not in step.keep:
                self._release(allocation)
        if aside is not None:
            self._release(aside)

    def _state(self, index: int, step: Run, recipe: Recipe) -> _Open | None:
        """The generator's state: kept as a value by a first run, saved and restored by a replay."""
        if recipe.state is None:
            return None
        size_B = self.graph.values[recipe.state].size_B
        if recipe.effect is Effect.PURE:
            return self._allocate(index, -1, size_B, None)
        if recipe.state in step.keep:
            self.open[recipe.state] = self._allocate(index, -1, size_B, recipe.state)
        return None

    def _allocate(self, step: int, order: int, size_B: int, value: int | None) -> _Open:
        self.tick += 1
        return _Open(step, order, size_B, self.tick, value)

    def _release(self, allocation: _Open) -> None:
        self.tick += 1
        self._close(allocation, self.tick)

    def _drop(self, value: int) -> None:
        allocation = self.open.pop(value, None)
        if allocation is not None:
            self._release(allocation)
        for handed in self.waiting.pop(value, ()):
            self._release(handed)

    def _hand_over(self, value: int) -> None:
        """The caller frees a value, or passes the same bytes in as another one."""
        heir = self.graph.values[value].handed_to
        if heir is None or value not in self.open:
            self._drop(value)
        else:
            self.waiting.setdefault(heir, []).append(self.open.pop(value))

    def _close(self, allocation: _Open, stop: int) -> None:
        self.closed.append(
            Block(allocation.step, allocation.order, allocation.size_B, allocation.start, stop, allocation.value)
        )
