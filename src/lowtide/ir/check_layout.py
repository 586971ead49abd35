"""Whether a layout gives every residency bytes of its own. Units: `_B` bytes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from lowtide.ir.check_graph import value_name
from lowtide.ir.graph import Graph
from lowtide.ir.layout import Layout, Placement
from lowtide.ir.rules import illegal

StayKey = tuple[int, int, int, int]


@dataclass(slots=True)
class Stay:
    """One stay of bytes in a memory, as the checker saw it.

    Arguments:
        owner: the value that first lived in them.
        size_B: how many.
        start, stop: steps [start, stop); `stop` is None while the stay lasts.
        writer: the step that writes the value now in them; None for what the caller gave.
        users: steps that write or read them, in order.
    """

    owner: int
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


def check_layout(graph: Graph, stays: list[Stay], order: Order, layout: Layout) -> None:
    """Checks that every stay has bytes of its own.

    Arguments:
        stays: of device memory, all of them ended.
        order: of the schedule's steps.

    Raises:
        IllegalPlan: names the first broken rule of `LAYOUT_RULES` and the value.

    Quadratic in the residencies on purpose: easy to believe.
    """
    wanted = Counter(_key(stay) for stay in stays)
    placed = Counter(_placed_key(p) for p in layout.placements)
    for key in (wanted - placed) + (placed - wanted):
        raise illegal("placement", value_name(graph, key[0]), key[1])
    for placement in layout.placements:
        if placement.offset_B < 0 or placement.offset_B + placement.residency.size_B > layout.height_B:
            raise illegal("height", value_name(graph, placement.residency.value), placement.residency.start)
    stay_of = {_key(stay): stay for stay in stays}
    for a, b in itertools.combinations(layout.placements, 2):
        if not _share_bytes(a, b):
            continue
        names = f"{value_name(graph, a.residency.value)} with {value_name(graph, b.residency.value)}"
        if a.residency.start < b.residency.stop and b.residency.start < a.residency.stop:
            raise illegal("overlap", names, max(a.residency.start, b.residency.start))
        first, second = (a, b) if a.residency.stop <= b.residency.start else (b, a)
        begin = second.residency.start
        for user in stay_of[_placed_key(first)].users:
            if not order.done(user, begin):
                raise illegal("reuse", names, begin)


def _key(stay: Stay) -> StayKey:
    return (stay.owner, stay.start, -1 if stay.stop is None else stay.stop, stay.size_B)


def _placed_key(placement: Placement) -> StayKey:
    stay = placement.residency
    return (stay.value, stay.start, stay.stop, stay.size_B)


def _share_bytes(a: Placement, b: Placement) -> bool:
    return a.offset_B < b.offset_B + b.residency.size_B and b.offset_B < a.offset_B + a.residency.size_B
