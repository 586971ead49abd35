"""Whether a layout gives every allocation bytes of its own.

The lifetimes are found anew from the schedule and the mini-traces, and compared as (step, event) pairs, so that a
mistake in `sequence.py` is not repeated here. Units: `_B` bytes.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.ir.check_graph import recipe_name, value_name
from lowtide.ir.graph import Effect, Graph
from lowtide.ir.layout import Layout
from lowtide.ir.rules import illegal
from lowtide.ir.schedule import DEVICE, Boundary, Fetch, Run, Schedule, memory_of

Instant = tuple[int, float]  # a step, and the event inside it
_FIRST, _LAST = float("-inf"), float("inf")


@dataclass(slots=True)
class Lifetime:
    """One residency of bytes in a memory, as the checker saw it.

    Arguments:
        owner: the value that first lived in them.
        tenant: the value that did last; another one where the first was overwritten.
        size_B: how many.
        start, stop: steps [start, stop); `stop` is None while it lasts.
        writer: the step that writes the value now in them; None for what the caller gave.
        users: steps that write or read them, in order.
    """

    owner: int
    tenant: int
    size_B: int
    start: int
    stop: int | None = None
    writer: int | None = None
    users: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Order:
    """Which steps are known to be done when a step begins.

    Arguments:
        stream: per step, the queue it runs in: one per engine, and one per direction of copying. The last entry
            stands for the end of the schedule.
        known: per step, per queue, the last step of it that is known to be done when this one begins.
    """

    stream: tuple[str, ...]
    known: tuple[dict[str, int], ...]

    def done(self, earlier: int, step: int) -> bool:
        """Whether `earlier` is known to be done when `step` begins."""
        return self.known[step].get(self.stream[earlier], -1) >= earlier


@dataclass(frozen=True, slots=True)
class Span:
    """What one allocation has to be given: so many bytes from an instant up to another."""

    name: str
    size_B: int
    begin: Instant
    end: Instant
    lifetime: Lifetime | None


def check_layout(graph: Graph, schedule: Schedule, lifetimes: Sequence[Lifetime], order: Order, layout: Layout) -> None:
    """Checks that every allocation of the schedule has bytes of its own.

    Arguments:
        lifetimes: of values in device memory, all of them ended. Those that the caller brought are placed elsewhere.
        order: of the schedule's steps.

    Raises:
        IllegalPlan: names the first broken rule of `LAYOUT_RULES` and the value.

    O(blocks * log blocks), and quadratic where several engines run.
    """
    spans = _spans(graph, schedule, lifetimes)
    wanted = {key: span for key, span in spans.items() if span.size_B >= layout.small_B}
    place: dict[tuple[int, int], int] = {}
    if len(layout.blocks) != len(layout.offsets_B):
        raise illegal("placement", f"{len(layout.blocks)} blocks with {len(layout.offsets_B)} offsets")
    for block, offset_B in zip(layout.blocks, layout.offsets_B, strict=True):
        key = (block.step, block.order)
        span = wanted.get(key)
        if span is None or key in place or span.size_B != block.size_B:
            name = f"allocation {block.order}" if span is None else span.name
            raise illegal("placement", name, block.step)
        place[key] = offset_B
        if offset_B < 0 or offset_B + span.size_B > layout.height_B or offset_B % layout.alignment_B:
            raise illegal("height", span.name, block.step)
    for key in wanted.keys() - place.keys():
        raise illegal("placement", wanted[key].name, key[0])
    _overlaps(wanted, place, layout)
    if len(set(order.stream)) > 1:
        _reuse(wanted, place, order)


def _spans(graph: Graph, schedule: Schedule, lifetimes: Sequence[Lifetime]) -> dict[tuple[int, int], Span]:
    """Every allocation by its step and its place among the step's allocations."""
    lifetime_of = {(lifetime.owner, lifetime.start): lifetime for lifetime in lifetimes}
    steps = schedule.steps
    last: dict[int, int] = {}  # value -> where its last residency ends
    for lifetime in lifetimes:
        last[lifetime.owner] = max(last.get(lifetime.owner, 0), lifetime.stop or 0)

    def until(lifetime: Lifetime) -> Instant:
        """When the bytes of a residency are free: if they arrive as another value, when that one is dropped."""
        stop, heir = lifetime.stop or 0, graph.values[lifetime.tenant].handed_to
        if heir is not None and (stop == len(steps) or isinstance(steps[stop], Boundary)):
            stop = max(stop, last.get(heir, 0))  # one that is dropped inside its segment was not handed over
        return (stop, _FIRST)

    spans: dict[tuple[int, int], Span] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Fetch):
            lifetime = lifetime_of[step.value, index]
            name = value_name(graph, step.value)
            spans[index, 0] = Span(name, lifetime.size_B, (index, 0), until(lifetime), lifetime)
        if not isinstance(step, Run):
            continue
        recipe = graph.recipes[step.recipe]
        if memory_of(recipe.engine) != DEVICE:
            continue
        outputs = [v for v in recipe.outputs if not (recipe.effect is Effect.RANDOM and v == recipe.state)]
        value_of = {
            at: v for v, at in zip(outputs, recipe.trace.outputs, strict=False) if at is not None and v in step.keep
        }
        released = {-event - 1: when for when, event in enumerate(recipe.trace.events) if event < 0}
        count = -1
        for when, size_B in enumerate(recipe.trace.events):
            if size_B < 0:
                continue
            count += 1
            kept = lifetime_of.get((value_of[count], index)) if count in value_of else None
            name = (
                value_name(graph, value_of[count])
                if count in value_of
                else f"a temporary of {recipe_name(graph, recipe.id)}"
            )
            end = (index, float(released.get(count, _LAST))) if kept is None else until(kept)
            spans[index, count] = Span(name, size_B, (index, when), end, kept)
        if recipe.state is not None and (recipe.effect is Effect.PURE or recipe.state in step.keep):
            kept = lifetime_of.get((recipe.state, index)) if recipe.effect is Effect.RANDOM else None
            end = (index, _LAST) if kept is None else until(kept)
            size_B = graph.values[recipe.state].size_B
            spans[index, -1] = Span(value_name(graph, recipe.state), size_B, (index, -1), end, kept)
    return spans


def _overlaps(spans: Mapping[tuple[int, int], Span], place: Mapping[tuple[int, int], int], layout: Layout) -> None:
    """Walks through time with the occupied ranges in address order: a new one may touch neither neighbour."""
    occupied = [(o.offset_B, o.offset_B + o.size_B, "what was there before") for o in layout.live_blocks]
    occupied.sort()
    events = [(span.begin, 1, key) for key, span in spans.items()] + [(span.end, 0, key) for key, span in spans.items()]
    for instant, begins, key in sorted(events):
        low, high, name = place[key], place[key] + spans[key].size_B, spans[key].name
        at = bisect.bisect_left(occupied, (low, high, name))
        if not begins:
            if spans[key].begin < instant:
                occupied.remove((low, high, name))
            continue
        if spans[key].end <= instant:
            continue
        for other in occupied[max(0, at - 1) : at + 1]:
            if other[0] < high and low < other[1]:
                raise illegal("overlap", f"{name} with {other[2]}", instant[0])
        occupied.insert(at, (low, high, name))


def _reuse(spans: Mapping[tuple[int, int], Span], place: Mapping[tuple[int, int], int], order: Order) -> None:
    """Bytes that a later allocation reuses: all that touched them must be done."""
    for (a, first), (b, second) in itertools.permutations(spans.items(), 2):
        if place[a] >= place[b] + second.size_B or place[b] >= place[a] + first.size_B or first.end > second.begin:
            continue
        for user in first.lifetime.users if first.lifetime is not None else (first.begin[0],):
            if not order.done(user, second.begin[0]) and user != second.begin[0]:
                raise illegal("reuse", f"{first.name} with {second.name}", second.begin[0])
