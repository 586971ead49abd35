"""Memory over one step as inline SVG, with the data that the page's script shows under the pointer.

Units: `_B` bytes, `_s` seconds; coordinates are those of the SVG's view box.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.report.markup import escape, script_data
from lowtide.report.timeline import MemoryCurve, Point
from lowtide.units import format_B

WIDTH, HEIGHT = 1100.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 1085.0, 18.0, 322.0


@dataclass(frozen=True, slots=True)
class _Scale:
    span_s: float
    top_B: float

    def x(self, time_s: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * time_s / self.span_s

    def y(self, size_B: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * size_B / self.top_B


def draw_svg(plan: MemoryCurve, plain: MemoryCurve, budget_B: int) -> str:
    """The two curves, the budget, the persistent level and the segments.

    Arguments:
        plan, plain: of the same network.
        budget_B: drawn as a line.

    Returns:
        An `<svg>` element without any reference to the outside.
    """
    scale = _Scale(_span_s(plan, plain), max(plan.peak_B, plain.peak_B, budget_B, 1) * 1.08)
    parts = [f'<svg id="memory" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="memory over one step">']
    parts += _grid(scale)
    parts += _curve(plain, scale, "plain") + _curve(plan, scale, "plan")
    level = scale.y(plan.persistent_B)
    parts.append(_rectangle("persistent", _LEFT, level, _RIGHT - _LEFT, _BOTTOM - level, "persistent"))
    parts += _segments(plan, scale) + _again(plan, scale)
    line = scale.y(budget_B)
    parts.append(f'<line class="budget" x1="{_LEFT}" x2="{_RIGHT}" y1="{line:.1f}" y2="{line:.1f}"/>')
    parts.append(_text(_RIGHT - 4, line - 5, f"budget {format_B(budget_B)}", "end", "budget-text"))
    parts.append(f'<line id="cursor" class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{_BOTTOM}"/></svg>')
    return "\n".join(parts)


def pointer_data(plan: MemoryCurve, plain: MemoryCurve) -> str:
    """JSON of the plan's timed steps for the page's script, safe inside a `<script>` element."""
    points = _timed(plan)
    data = {
        "width": WIDTH,
        "left": _LEFT,
        "right": _RIGHT,
        "span_ms": _span_s(plan, plain) * 1e3,
        "start_ms": [round(p.start_s * 1e3, 4) for p in points],
        "peak_B": [p.peak_B for p in points],
        "step": [p.step for p in points],
        "label": [p.label for p in points],
        "place": [p.place for p in points],
        "again": [int(p.again) for p in points],
    }
    return script_data(data)


def _span_s(plan: MemoryCurve, plain: MemoryCurve) -> float:
    return max(plan.time_s, plain.time_s) or 1.0


def _timed(curve: MemoryCurve) -> list[Point]:
    """Steps that take time; those that take none are told by their neighbours' heights."""
    return [p for p in curve.points if p.stop_s > p.start_s]


def _curve(curve: MemoryCurve, scale: _Scale, name: str) -> list[str]:
    corners: list[str] = []
    for point in _timed(curve):
        height = scale.y(point.peak_B)
        corners += [f"{scale.x(point.start_s):.1f},{height:.1f}", f"{scale.x(point.stop_s):.1f},{height:.1f}"]
    if not corners:
        return []
    start, stop = f"{_LEFT:.1f},{_BOTTOM:.1f}", f"{scale.x(curve.time_s):.1f},{_BOTTOM:.1f}"
    area = f'<polygon class="{name}-area" points="{start} {" ".join(corners)} {stop}"/>'
    return [area, f'<polyline class="{name}-line" points="{" ".join(corners)}"/>']


def _again(plan: MemoryCurve, scale: _Scale) -> list[str]:
    """A strip under the axis that marks recomputation."""
    strips = [(scale.x(p.start_s), scale.x(p.stop_s), p.label) for p in _timed(plan) if p.again]
    return [_rectangle("again", x, _BOTTOM + 2, max(0.6, stop - x), 5, label) for x, stop, label in strips]


def _segments(plan: MemoryCurve, scale: _Scale) -> list[str]:
    parts: list[str] = []
    for stretch in plan.stretches:
        start, stop = scale.x(stretch.start_s), scale.x(stretch.stop_s)
        if stretch.start_s > 0:
            parts.append(f'<line class="cut" x1="{start:.1f}" x2="{start:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
        parts.append(_text((start + stop) / 2, HEIGHT - 6, stretch.name, "middle"))
    return parts


def _grid(scale: _Scale) -> list[str]:
    parts: list[str] = []
    for fifth in range(6):
        size_B = scale.top_B * fifth / 5
        y = scale.y(size_B)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, format_B(size_B), "end"))
    for fifth in range(6):
        time_s = scale.span_s * fifth / 5
        parts.append(_text(scale.x(time_s), _BOTTOM + 19, f"{time_s * 1e3:.4g} ms", "end" if fifth == 5 else "middle"))
    return parts


def _rectangle(name: str, x: float, y: float, width: float, height: float, title: str) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{name}" {box}><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, text: str, anchor: str, name: str = "") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
