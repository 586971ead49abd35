"""A frontier as inline SVG; each other method is a letter, whose name the legend and the pointer tell.

Coordinates are those of the SVG's view box. Units: `_B` bytes; overheads are fractions, drawn as percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_uppercase

from lowtide.ir.frontier import FrontierRecord
from lowtide.report.frontier_curves import Corner, Curves, curves_of, height_of, overhead_ticks
from lowtide.report.markup import escape
from lowtide.units import format_B, format_percent

WIDTH, HEIGHT = 1100.0, 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 1085.0, 40.0, 382.0
_RADIUS = 7.5


@dataclass(frozen=True, slots=True)
class _Scale:
    left_B: int
    right_B: int
    top: float

    def x(self, size_B: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (size_B - self.left_B) / (self.right_B - self.left_B)

    def y(self, overhead: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * height_of(min(overhead, self.top)) / height_of(self.top)


def letters(record: FrontierRecord) -> tuple[tuple[str, str], ...]:
    """The letter and the name of each other method that is drawn."""
    return tuple(zip(ascii_uppercase, (b.name for b in record.baselines if b.points), strict=False))


def frontier_svg(record: FrontierRecord) -> str:
    """The frontier, its bound, floor and keep-all, and other methods.

    Arguments:
        record: with at least one plan.

    Returns:
        An `<svg>` element without any reference to the outside.
    """
    curves = curves_of(record)
    scale = _Scale(curves.left_B, curves.right_B, curves.top)
    parts = [f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="least time at every budget">']
    parts += _reasons(curves, scale) + _grid(record, scale)
    parts.append(f'<polygon class="plan-area" points="{_path(curves.gap, scale)}"/>')
    parts.append(f'<polyline class="bound-line" points="{_path(curves.bound, scale)}"/>')
    parts.append(f'<polyline class="plan-line" points="{_path(curves.plan, scale)}"/>')
    for budget_B, overhead in curves.points:
        told = escape(f"lowtide: {format_B(budget_B)}, {format_percent(overhead)} more time")
        place = f'cx="{scale.x(budget_B):.1f}" cy="{scale.y(overhead):.1f}"'
        parts.append(f'<circle class="point" {place} r="4"><title>{told}</title></circle>')
    parts += _others(curves, scale) + _edges(record, scale)
    return "\n".join([*parts, "</svg>"])


def _path(corners: Iterable[Corner], scale: _Scale) -> str:
    return " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in corners)


def _reasons(curves: Curves, scale: _Scale) -> list[str]:
    """Below the floor, and between it and the smallest plan."""
    low, high = (scale.x(b) for b in curves.unknown)
    spans = (("impossible", _LEFT, low, "proved impossible"), ("unknown", low, high, "no plan known, none proved"))
    return [
        f'<rect class="{name}" x="{start:.1f}" y="{_TOP}" width="{stop - start:.1f}" height="{_BOTTOM - _TOP}">'
        f"<title>{told}</title></rect>"
        for name, start, stop, told in spans
        if stop > start
    ]


def _grid(record: FrontierRecord, scale: _Scale) -> list[str]:
    """Bytes below, percent of keep-all above, percent of time at the left."""
    parts = []
    for overhead in overhead_ticks(scale.top):
        y = scale.y(overhead)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{100 * overhead:g} %", "end"))
    whole_B = record.keep_all_B
    step = _round_step((scale.right_B - scale.left_B) / whole_B, 10)
    first, last = math.ceil(scale.left_B / whole_B / step), math.floor(scale.right_B / whole_B / step)
    for number in range(first, last + 1):
        size_B = number * step * whole_B
        x = scale.x(size_B)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(_text(x, _BOTTOM + 17, format_B(size_B), "middle"))
        parts.append(_text(x, _TOP - 8, f"{100 * number * step:.3g} %", "middle"))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 8, "budget, in bytes and (above) in percent of keeping everything", "middle"))
    parts.append(_text(_LEFT, 12, "extra time over keeping everything (square-root scale)", "start"))
    return parts


def _round_step(span: float, most: int) -> float:
    """The smallest round step with at most so many in a span."""
    size = 10.0 ** math.floor(math.log10(span / most))
    return next(size * factor for factor in (1, 2, 5, 10) if span / (size * factor) <= most)


def _edges(record: FrontierRecord, scale: _Scale) -> list[str]:
    parts = []
    lines = ((record.floor_B, "floor", "start", 5, "budget"), (record.keep_all_B, "keep all", "end", -5, "cut"))
    for size_B, name, anchor, shift, kind in lines:
        x = scale.x(size_B)
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        kind_of_text = "halo budget-text" if kind == "budget" else "halo"
        parts.append(_text(x + shift, _TOP + 15, f"{name} {format_B(size_B)}", anchor, kind_of_text))
    return parts


def _others(curves: Curves, scale: _Scale) -> list[str]:
    """Letters in circles; one that would cover another stands above it, those too high stand at the edge."""
    parts = []
    placed: list[tuple[float, float]] = []
    for letter, marks in zip(ascii_uppercase, curves.others, strict=False):
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


def _text(x: float, y: float, text: str, anchor: str, name: str = "") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
