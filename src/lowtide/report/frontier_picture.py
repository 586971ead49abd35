"""A frontier as a picture: least time over budget, what is proved, and where other methods stand; for pages and files.

A plan serves from the bytes that it takes up to those of the next faster one, and no more is proved below a budget than
at it: both curves are steps. Another method is a letter, whose name the legend and the pointer tell.

Units: `_B` bytes; overheads are fractions, drawn as percent; coordinates are those of the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from string import ascii_uppercase

from lowtide.ir.frontier import FrontierRecord
from lowtide.report.markup import escape
from lowtide.report.svg import Picture, document, level, polygon, polyline, rectangle, round_step, text, upright
from lowtide.units import format_B, format_percent

Corner = tuple[int, float]
_CAPACITY = 1.8  # what of other methods' overheads is drawn in full, as a multiple of the frontier's largest
_LEAST = 0.05  # of the overhead axis
_HEADROOM = 1.25  # for the names of floor and keep-all
_TICKS = (
    0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 50.0, 100.0,
)  # fmt: skip
_TICK_APART = 0.06  # of the axis
_WIDTH, _HEIGHT = 1100.0, 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 1085.0, 40.0, 382.0
_RADIUS = 7.5


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


@dataclass(frozen=True, slots=True)
class _Scale:
    left_B: int
    right_B: int
    top: float

    def x(self, size_B: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (size_B - self.left_B) / (self.right_B - self.left_B)

    def corners(self, corners: Iterable[Corner]) -> list[tuple[float, float]]:
        return [(self.x(size_B), self.y(overhead)) for size_B, overhead in corners]

    def y(self, overhead: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * height_of(min(overhead, self.top)) / height_of(self.top)


def write_frontier_picture(record: FrontierRecord, path: str | PathLike[str], *, title: str | None = None) -> None:
    """Draws a frontier into an SVG file.

    Arguments:
        record: with at least one plan.
        path: of the file to write; an existing one is replaced.
        title: above the picture; a sentence with the main numbers when None.

    Raises:
        OSError: if it cannot be written.
    """
    Path(path).write_text(document(frontier_picture(record), title or title_of(record)), encoding="utf-8")


def frontier_picture(record: FrontierRecord) -> Picture:
    """The frontier, its bound, floor and keep-all, and other methods.

    Arguments:
        record: with at least one plan.
    """
    curves = curves_of(record)
    scale = _Scale(curves.left_B, curves.right_B, curves.top)
    parts = [*_reasons(curves, scale), *_grid(record, scale)]
    parts.append(polygon("plan-area", scale.corners(curves.gap)))
    parts.append(polyline("bound-line", scale.corners(curves.bound)))
    parts.append(polyline("plan-line", scale.corners(curves.plan)))
    for budget_B, overhead in curves.points:
        told = escape(f"lowtide: {format_B(budget_B)}, {format_percent(overhead)} more time")
        place = f'cx="{scale.x(budget_B):.1f}" cy="{scale.y(overhead):.1f}"'
        parts.append(f'<circle class="point" {place} r="4"><title>{told}</title></circle>')
    parts += _others(curves, scale) + _edges(record, scale)
    legend = [
        ("plan-line", "lowtide"),
        ("bound-line", "proved bound; no schedule of its class lies below"),
        ("impossible", "proved impossible"),
        ("unknown", "no plan known"),
        *(("", f"{letter} {label_of(marks, curves.top)}") for letter, marks in _lettered(curves)),
    ]
    return Picture(_WIDTH, _HEIGHT, "least time at every budget", tuple(parts), tuple(legend))


def _lettered(curves: Curves) -> Iterator[tuple[str, Marks]]:
    return zip(ascii_uppercase, curves.others, strict=False)


def _reasons(curves: Curves, scale: _Scale) -> list[str]:
    """Below the floor, and between it and the smallest plan."""
    low, high = (scale.x(b) for b in curves.unknown)
    spans = (("impossible", _LEFT, low, "proved impossible"), ("unknown", low, high, "no plan known, none proved"))
    return [
        rectangle(name, start, _TOP, stop - start, _BOTTOM - _TOP, told)
        for name, start, stop, told in spans
        if stop > start
    ]


def _grid(record: FrontierRecord, scale: _Scale) -> list[str]:
    """Bytes below, percent of keep-all above, percent of time at the left."""
    parts = []
    for overhead in overhead_ticks(scale.top):
        y = scale.y(overhead)
        parts.append(level("grid", y, _LEFT, _RIGHT))
        parts.append(text(_LEFT - 6, y + 4, f"{100 * overhead:g} %", "end"))
    whole_B = record.keep_all_B
    step = round_step((scale.right_B - scale.left_B) / whole_B, 10)
    first, last = math.ceil(scale.left_B / whole_B / step), math.floor(scale.right_B / whole_B / step)
    for number in range(first, last + 1):
        size_B = number * step * whole_B
        x = scale.x(size_B)
        parts.append(upright("grid", x, _TOP, _BOTTOM))
        parts.append(text(x, _BOTTOM + 17, format_B(size_B), "middle"))
        parts.append(text(x, _TOP - 8, f"{100 * number * step:.3g} %", "middle"))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(text(middle, _HEIGHT - 8, "budget, in bytes and (above) in percent of keeping everything", "middle"))
    parts.append(text(_LEFT, 12, "extra time over keeping everything (square-root scale)", "start"))
    return parts


def _edges(record: FrontierRecord, scale: _Scale) -> list[str]:
    parts = []
    lines = ((record.floor_B, "floor", "start", 5, "budget"), (record.keep_all_B, "keep all", "end", -5, "cut"))
    for size_B, name, anchor, shift, kind in lines:
        x = scale.x(size_B)
        parts.append(upright(kind, x, _TOP, _BOTTOM))
        kind_of_text = "halo budget-text" if kind == "budget" else "halo"
        parts.append(text(x + shift, _TOP + 15, f"{name} {format_B(size_B)}", anchor, kind_of_text))
    return parts


def _others(curves: Curves, scale: _Scale) -> list[str]:
    """Letters in circles; one that would cover another stands above it, those too high stand at the edge."""
    parts = []
    placed: list[tuple[float, float]] = []
    for letter, marks in _lettered(curves):
        for corner in marks.points:
            x, y = scale.x(corner[0]), scale.y(corner[1])
            while y > _TOP and any(math.hypot(x - a, y - b) < 1.6 * _RADIUS for a, b in placed):
                y -= _RADIUS / 2
            placed.append((x, y))
            told = escape(f"{marks.name}: {format_B(corner[0])}, {format_percent(corner[1])} more time")
            parts.append(
                f'<g class="mark"><title>{told}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}"/>'
                f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="middle">{letter}</text></g>'
            )
    return parts
