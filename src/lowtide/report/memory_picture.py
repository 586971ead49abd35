"""Memory over one step as a picture: what keeping all needs, what the plan needs, what an allocator saw.

Units: `_B` bytes, `_s` seconds; coordinates are those of the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from os import PathLike
from pathlib import Path

from lowtide.ir.plan import PlanRecord
from lowtide.report.markup import script_data
from lowtide.report.svg import Picture, document, level, polygon, polyline, rectangle, round_step, text, upright
from lowtide.report.timeline import MemoryCurve, Point, keep_all_curve, plan_curve
from lowtide.units import format_B, format_percent

Observed = Sequence[tuple[float, int]]
"""An allocator's log: (order of the event, bytes live after it)."""

_WIDTH, _HEIGHT = 1100.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 1085.0, 18.0, 322.0
_SEEN = ("seen-1-line", "seen-2-line", "seen-3-line")


@dataclass(frozen=True, slots=True)
class _Scale:
    span_s: float
    top_B: float

    def x(self, time_s: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * time_s / self.span_s

    def y(self, size_B: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * size_B / self.top_B


def write_memory(
    record: PlanRecord,
    path: str | PathLike[str],
    *,
    observed: Mapping[str, Observed] | None = None,
    title: str | None = None,
) -> None:
    """Draws memory over one step into an SVG file.

    Arguments:
        record: a legal plan.
        path: of the file to write; an existing one is replaced.
        observed: per legend entry, an allocator's log over one step, absolute bytes. An entry whose name starts
            with "plain" is laid along the keep-all curve, any other along the plan's.
        title: above the picture; a sentence with the main numbers when None.

    Raises:
        OSError: if it cannot be written.
    """
    picture = memory_picture(plan_curve(record), keep_all_curve(record), record.budget_B, observed or {})
    Path(path).write_text(document(picture, title or _title(record)), encoding="utf-8")


def memory_picture(
    plan: MemoryCurve, plain: MemoryCurve, budget_B: int, observed: Mapping[str, Observed] | None = None
) -> Picture:
    """The two curves, the budget, the persistent level, the segments, and what was observed.

    Arguments:
        plan, plain: of the same network.
        budget_B: drawn as a line.
        observed: as in `write_memory`.
    """
    logs = {name: log for name, log in (observed or {}).items() if log}
    seen_B = [size_B for log in logs.values() for _, size_B in log]
    scale = _Scale(_span_s(plan, plain), max(plan.peak_B, plain.peak_B, budget_B, 1, *seen_B) * 1.08)
    parts = [*_grid(scale), *_curve(plain, scale, "plain"), *_curve(plan, scale, "plan")]
    floor = scale.y(plan.persistent_B)
    parts.append(rectangle("persistent", _LEFT, floor, _RIGHT - _LEFT, _BOTTOM - floor, "persistent"))
    parts += _segments(plan, scale) + _recomputations(plan, scale)
    legend = [
        ("plan-line", f"{plan.name} ({format_B(plan.peak_B)})"),
        ("plain-line", f"{plain.name} ({format_B(plain.peak_B)})"),
        ("persistent", "persistent"),
        ("again", "recomputed"),
    ]
    for kind, (name, log) in zip(cycle(_SEEN), logs.items(), strict=False):
        parts.append(polyline(kind, _observed(log, plain if name.startswith("plain") else plan, scale)))
        legend.append((kind, f"{name} ({format_B(max(size_B for _, size_B in log))})"))
    line = scale.y(budget_B)
    parts.append(level("budget", line, _LEFT, _RIGHT))
    parts.append(text(_RIGHT - 4, line - 5, f"budget {format_B(budget_B)}", "end", "halo budget-text"))
    parts.append(f'<line id="cursor" class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{_BOTTOM}"/>')
    return Picture(_WIDTH, _HEIGHT, "memory over one step", tuple(parts), tuple(legend))


def pointer_data(plan: MemoryCurve, plain: MemoryCurve) -> str:
    """JSON of the plan's timed steps for the page's script, safe inside a `<script>` element."""
    points = _timed(plan)
    data = {
        "width": _WIDTH,
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


def _title(record: PlanRecord) -> str:
    name = f"{record.graph.name}: " if record.graph.name else ""
    share = record.peak_B / record.keep_all_peak_B if record.keep_all_peak_B else 1.0
    sizes = f"{format_B(record.peak_B)} instead of {format_B(record.keep_all_peak_B)} ({share:.0%})"
    return f"{name}{sizes}, {format_percent(record.overhead)} more time"


def _span_s(plan: MemoryCurve, plain: MemoryCurve) -> float:
    return max(plan.time_s, plain.time_s) or 1.0


def _timed(curve: MemoryCurve) -> list[Point]:
    """Steps that take time; those that take none are told by their neighbours' heights."""
    return [p for p in curve.points if p.stop_s > p.start_s]


def _curve(curve: MemoryCurve, scale: _Scale, name: str) -> list[str]:
    corners: list[tuple[float, float]] = []
    for point in _timed(curve):
        height = scale.y(point.peak_B)
        corners += [(scale.x(point.start_s), height), (scale.x(point.stop_s), height)]
    if not corners:
        return []
    area = [(_LEFT, _BOTTOM), *corners, (scale.x(curve.time_s), _BOTTOM)]
    return [polygon(f"{name}-area", area), polyline(f"{name}-line", corners)]


def _observed(log: Observed, along: MemoryCurve, scale: _Scale) -> list[tuple[float, float]]:
    """A log as steps; of the events that fall on one place of the picture, the least, the most and the last."""
    first, last = log[0][0], log[-1][0]
    span = (last - first) or 1.0
    placed = [(round(scale.x(along.time_at((order - first) / span)), 1), scale.y(size_B)) for order, size_B in log]
    corners: list[tuple[float, float]] = []
    for x, events in groupby(placed, key=lambda event: event[0]):
        heights = [y for _, y in events]
        before = [(x, corners[-1][1])] if corners else []
        corners += [*before, (x, min(heights)), (x, max(heights)), (x, heights[-1])]
    return [c for c, following in zip(corners, [*corners[1:], None], strict=True) if c != following]


def _recomputations(plan: MemoryCurve, scale: _Scale) -> list[str]:
    """A strip under the axis that marks recomputation."""
    strips = [(scale.x(p.start_s), scale.x(p.stop_s), p.label) for p in _timed(plan) if p.again]
    return [rectangle("again", x, _BOTTOM + 2, max(0.6, stop - x), 5, label) for x, stop, label in strips]


def _segments(plan: MemoryCurve, scale: _Scale) -> list[str]:
    parts: list[str] = []
    for stretch in plan.stretches:
        start, stop = scale.x(stretch.start_s), scale.x(stretch.stop_s)
        if stretch.start_s > 0:
            parts.append(upright("cut", start, _TOP, _BOTTOM))
        parts.append(text((start + stop) / 2, _HEIGHT - 6, stretch.name, "middle"))
    return parts


def _grid(scale: _Scale) -> list[str]:
    """Round bytes at the left, round times below."""
    parts: list[str] = []
    unit_B = next((u for u in (2**30, 2**20, 2**10) if scale.top_B >= 2 * u), 1)
    step_B = max(1.0, round_step(scale.top_B / unit_B, 6)) * unit_B
    for number in range(int(scale.top_B / step_B) + 1):
        size_B = int(number * step_B)
        y = scale.y(size_B)
        parts += [level("grid", y, _LEFT, _RIGHT), text(_LEFT - 6, y + 4, format_B(size_B), "end")]
    span_ms = scale.span_s * 1e3
    step_ms = round_step(span_ms, 7)
    for number in range(int(span_ms / step_ms) + 1):
        time_ms = number * step_ms
        x = scale.x(time_ms * 1e-3)
        parts.append(text(x, _BOTTOM + 19, f"{time_ms:.4g} ms", "end" if x > _RIGHT - 20 else "middle"))
    return parts
