"""A frontier as curves, for every picture to share.

A plan serves from the bytes that it takes up to those of the next faster one, and no more is proved below a budget than
at it: both curves are steps. Coordinates are bytes and overheads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowtide.ir.frontier import FrontierRecord
from lowtide.units import format_B, format_percent

Corner = tuple[int, float]
_CAPACITY = 1.8  # what of other methods' overheads is drawn in full, as a multiple of the frontier's largest
_LEAST = 0.05  # of the overhead axis
_HEADROOM = 1.25  # for the names of floor and keep-all
_TICKS = (
    0.0,
    0.001,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    7.5,
    10.0,
    20.0,
    50.0,
    100.0,
)
_TICK_APART = 0.06  # of the axis


@dataclass(frozen=True, slots=True)
class Marks:
    """Another method's plans; those above the picture are marked at its upper edge."""

    name: str
    points: tuple[Corner, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """What is drawn.

    Arguments:
        plan, bound: corners from the smallest budget up to keep-all.
        gap: the polygon between them.
        points: the plans, where they begin to fit.
        unknown: budgets from the floor to the smallest plan.
        left_B, right_B, top: the picture's edges; it begins at overhead 0.
    """

    plan: tuple[Corner, ...]
    bound: tuple[Corner, ...]
    gap: tuple[Corner, ...]
    points: tuple[Corner, ...]
    unknown: tuple[int, int]
    others: tuple[Marks, ...]
    left_B: int
    right_B: int
    top: float


def curves_of(record: FrontierRecord) -> Curves:
    """Reads the curves off a frontier. O(points)."""
    planned = _plans(record)
    proved = [(p.budget_B, p.bound_overhead) for p in reversed(record.points) if p.bound_s > 0]
    plan = _steps(planned, keeps=True)
    bound = _steps(proved, keeps=False)
    if bound and record.floor_B < bound[0][0]:
        bound = ((record.floor_B, bound[0][1]), *bound)
    smallest_B = planned[0][0] if planned else record.keep_all_B
    others = tuple(
        Marks(b.name, tuple((p.budget_B, p.overhead or 0.0) for p in b.points)) for b in record.baselines if b.points
    )
    largest = max([y for _, y in (*plan, *bound)], default=0.0)
    drawn = [y for m in others for _, y in m.points if y <= _CAPACITY * largest]
    everything = (record.floor_B, record.keep_all_B, *(x for m in others for x, _ in m.points))
    margin_B = max(1, (record.keep_all_B - record.floor_B) // 25, record.keep_all_B // 100)
    return Curves(
        plan=plan,
        bound=bound,
        gap=(*plan, *reversed(_from(bound, smallest_B))) if plan else (),
        points=tuple(planned),
        unknown=(record.floor_B, max(record.floor_B, smallest_B)),
        others=others,
        left_B=max(0, min(everything) - margin_B),
        right_B=max(everything) + margin_B,
        top=_HEADROOM * max(_LEAST, largest, *drawn),
    )


def _plans(record: FrontierRecord) -> list[Corner]:
    """Each plan once, at the bytes that it takes, smallest first."""
    return sorted({(p.reserved_B or 0, p.overhead or 0.0) for p in record.planned})


def _from(corners: tuple[Corner, ...], left_B: int) -> list[Corner]:
    """The part of a curve from some bytes on."""
    inside = [c for c in corners if c[0] >= left_B]
    return [(left_B, inside[0][1]), *inside] if inside else []


def height_of(overhead: float) -> float:
    """Where an overhead lies on the axis, in its units: square roots, so that small ones can be told apart."""
    return math.sqrt(max(0.0, overhead))


def overhead_ticks(top: float) -> tuple[float, ...]:
    """Round overheads up to the picture's top that are not too close to each other on its axis."""
    chosen: list[float] = []
    for tick in _TICKS:
        if tick <= top and (not chosen or height_of(tick) - height_of(chosen[-1]) >= _TICK_APART * height_of(top)):
            chosen.append(tick)
    return tuple(chosen)


def title_of(record: FrontierRecord) -> str:
    """A sentence with the main numbers, above the picture."""
    name = f"{record.name}: " if record.name else ""
    if record.smallest_B is None or not record.keep_all_B:
        return f"{name}time over memory"
    share = format_percent(record.smallest_B / record.keep_all_B)
    overhead = format_percent(record.planned[-1].overhead or 0.0)
    sizes = f"{format_B(record.keep_all_B)} when all is kept, down to {format_B(record.smallest_B)} ({share})"
    return f"{name}{sizes} for {overhead} more time"


def label_of(marks: Marks, top: float) -> str:
    """A method's name, with how far it reaches above the picture."""
    above = max(y for _, y in marks.points)
    return f"{marks.name} (up to {above * 100:.0f} %)" if above > top else marks.name


def _steps(points: list[Corner], *, keeps: bool) -> tuple[Corner, ...]:
    """Corners of the steps through points of rising budgets.

    Arguments:
        keeps: whether a height holds up to the next budget, or from the one before.
    """
    corners: list[Corner] = []
    for x, y in points:
        if corners:
            before_x, before_y = corners[-1]
            corners.append((x, before_y) if keeps else (before_x, y))
        corners.append((x, y))
    return tuple(corners)
